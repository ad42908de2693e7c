"""Names for values that a formula uses more than once; without them nested formulas would grow exponentially."""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr


class Names:
    """Variables bound one after the other, the later ones in terms of those before."""

    def __init__(self) -> None:
        self._bound: list[tuple[Any, Any]] = []

    def __call__(self, value: TirExpr) -> TirExpr:
        """A variable that stands for the value."""
        variable = _tvm.tirx.Var("v", str(value.ty.dtype))
        self._bound.append((variable, value))
        return variable

    def close(self, value: TirExpr) -> TirExpr:
        """The expression in which the variables have their values."""
        for variable, bound in reversed(self._bound):
            value = _tvm.tirx.Let(variable, bound, value)
        return value
