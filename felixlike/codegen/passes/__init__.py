"""What functions still undergo on the way into the compiler.

The schedules and workloads that everybody else sees stay as they are; only the code differs."""

from typing import Any

from felixlike.codegen.passes.columns import COLUMNS, peel_columns
from felixlike.codegen.passes.first_and_last import BLOCKS, first_and_last
from felixlike.codegen.passes.guards import GUARD, guard
from felixlike.codegen.passes.halves import write_out_halves
from felixlike.codegen.passes.nan import from_infinity, keep_nan
from felixlike.codegen.passes.prefetch import PREFETCH, prefetch
from felixlike.codegen.passes.reciprocal import share_reciprocals
from felixlike.codegen.passes.rest import PEEL, peel_rests
from felixlike.codegen.passes.skip import SKIP, skip_padding
from felixlike.codegen.passes.tile_rows import tile_rows
from felixlike.codegen.passes.transpose import TRANSPOSE, transpose
from felixlike.codegen.passes.vector_math import FUNCTIONS, vectorise_math

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
