"""Exact algebra of schedule variables: expressions, their order and their values. Knows nothing of TVM."""
