"""Bind values that a formula uses more than once to variables. Nested formulas would grow exponentially without
them.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr


class Names:
    """Variables that are bound one after another. Later ones may use earlier ones."""

    def __init__(self) -> None:
        self._bound: list[tuple[Any, Any]] = []

    def __call__(self, value: TirExpr) -> TirExpr:
        """Return a variable bound to the value."""
        variable = _tvm.tirx.Var("v", str(value.ty.dtype))
        self._bound.append((variable, value))
        return variable

    def close(self, value: TirExpr) -> TirExpr:
        """Return the expression with all variables bound."""
        for variable, bound in reversed(self._bound):
            value = _tvm.tirx.Let(variable, bound, value)
        return value
