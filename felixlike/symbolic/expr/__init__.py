"""Define the exact algebra of schedule variables: expressions, comparisons and evaluation. Independent of TVM."""

import felixlike.symbolic.expr.comparison  # noqa: F401  registers operators, so that all expressions can be unpickled
