"""Exact algebra of schedule variables: expressions, their order and their values. Knows nothing of TVM."""

import felixlike.symbolic.expr.comparison  # noqa: F401  so that expressions of every operator can be unpickled
