"""Values that are zero outside of a tensor, as copies that pad write them."""

from __future__ import annotations

from typing import Any

from felixlike._tvm.typing import TirExpr


def padded(value: TirExpr) -> tuple[Any, Any] | None:
    """The condition and the value of an expression that is zero where the condition does not hold; None for others."""
    if str(getattr(getattr(value, "op", None), "name", "")) != "prim.if_then_else":
        return None
    condition, inside, otherwise = value.args
    return (condition, inside) if float(getattr(otherwise, "value", 1.0)) == 0.0 else None
