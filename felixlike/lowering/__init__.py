"""What functions still undergo on the way into the compiler.

The schedules and workloads that everybody else sees stay as they are; only the code differs."""

from typing import Any

from felixlike.lowering.columns import COLUMNS, peel_columns
from felixlike.lowering.first_and_last import BLOCKS, first_and_last
from felixlike.lowering.guards import GUARD, guard
from felixlike.lowering.halves import write_out_halves
from felixlike.lowering.lone_output import lone_output
from felixlike.lowering.nan import from_infinity, keep_nan
from felixlike.lowering.prefetch import PREFETCH, prefetch
from felixlike.lowering.reciprocal import share_reciprocals
from felixlike.lowering.rest import PEEL, peel_rests
from felixlike.lowering.skip import SKIP, skip_padding
from felixlike.lowering.tile_rows import tile_rows
from felixlike.lowering.transpose import TRANSPOSE, transpose
from felixlike.lowering.vector_math import FUNCTIONS, vectorise_math

__all__ = [
    "BLOCKS",
    "COLUMNS",
    "FUNCTIONS",
    "GUARD",
    "PEEL",
    "PREFETCH",
    "SKIP",
    "TRANSPOSE",
    "first_and_last",
    "from_infinity",
    "guard",
    "keep_nan",
    "lone_output",
    "lower",
    "peel_columns",
    "peel_rests",
    "prefetch",
    "share_reciprocals",
    "skip_padding",
    "tile_rows",
    "transpose",
    "vectorise_math",
    "write_out_halves",
]


def lower(module: Any) -> Any:
    """An IRModule of PrimFuncs (and Relax functions, which stay) ready for TVM's compiler for CPUs."""
    for change in _CHANGES:
        module = change(module)
    return module


_CHANGES = (
    from_infinity,
    skip_padding,
    transpose,
    first_and_last,
    guard,
    tile_rows,
    prefetch,
    peel_rests,
    peel_columns,
    share_reciprocals,
    write_out_halves,
    keep_nan,
    vectorise_math,
)
"""In the order in which they are made: each finds the marks and loops that it looks for as those before leave them."""
