"""Recognize values that are zero outside of a tensor, as padded copies have them."""

from __future__ import annotations

from typing import Any

from felixlike._tvm.typing import TirExpr


def padded(value: TirExpr) -> tuple[Any, Any] | None:
    """Return the condition and value of an expression that is zero if the condition does not hold, else None."""
    if str(getattr(getattr(value, "op", None), "name", "")) != "prim.if_then_else":
        return None
    condition, inside, otherwise = value.args
    return (condition, inside) if float(getattr(otherwise, "value", 1.0)) == 0.0 else None
