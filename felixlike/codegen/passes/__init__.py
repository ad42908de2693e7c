"""Passes over scheduled functions, a file each; `codegen/pipeline.py` has their order."""

from felixlike.codegen.passes.alignment import unaligned_parameters
from felixlike.codegen.passes.asynchronous import asynchronous_copies, only_marked_are_asynchronous
from felixlike.codegen.passes.columns import peel_columns
from felixlike.codegen.passes.first_and_last import first_and_last
from felixlike.codegen.passes.guards import guard
from felixlike.codegen.passes.halves import write_out_halves
from felixlike.codegen.passes.nan import from_infinity, keep_nan
from felixlike.codegen.passes.prefetch import prefetch
from felixlike.codegen.passes.reciprocal import share_reciprocals
from felixlike.codegen.passes.rows import rows_in_vectors
from felixlike.codegen.passes.skip import skip_padding
from felixlike.codegen.passes.tail import peel_tails
from felixlike.codegen.passes.tensor_cores import tensor_cores
from felixlike.codegen.passes.tile_rows import tile_rows
from felixlike.codegen.passes.transpose import transpose
from felixlike.codegen.passes.vector_math import FUNCTIONS, vectorise_math

__all__ = [
    "FUNCTIONS",
    "asynchronous_copies",
    "first_and_last",
    "from_infinity",
    "guard",
    "keep_nan",
    "only_marked_are_asynchronous",
    "peel_columns",
    "peel_tails",
    "prefetch",
    "rows_in_vectors",
    "share_reciprocals",
    "skip_padding",
    "tensor_cores",
    "tile_rows",
    "transpose",
    "unaligned_parameters",
    "vectorise_math",
    "write_out_halves",
]
