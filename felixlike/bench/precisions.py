"""Name the precision of a graph by the types of its tensors."""

from __future__ import annotations

from collections.abc import Iterable


def precisions(names: Iterable[str]) -> str:
    """Return the names of floating-point types and of int8 among names of types, or "integers".

    Example:
        >>> precisions(["float32", "int64", "bfloat16"])
        'bfloat16 and float32'
    """
    kinds = sorted({name for name in names if "float" in name or name == "int8"})
    return " and ".join(kinds) or "integers"
