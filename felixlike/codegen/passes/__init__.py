"""Passes over scheduled functions, one in each file. `codegen/pipeline.py` has their order."""

from felixlike.codegen.passes.asynchronous import asynchronous_copies, only_marked_are_asynchronous
from felixlike.codegen.passes.choose_lazily import choose_lazily
from felixlike.codegen.passes.convert_bfloat16 import write_out_halves
from felixlike.codegen.passes.multiply_pairs import multiply_pairs
from felixlike.codegen.passes.peel_reduction_blocks import first_and_last
from felixlike.codegen.passes.plain_conditions import plain_conditions
from felixlike.codegen.passes.prefetch import prefetch
from felixlike.codegen.passes.propagate_nan import from_infinity, keep_nan, keep_rounding
from felixlike.codegen.passes.remove_guards import guard
from felixlike.codegen.passes.round_halves import only_with_instructions
from felixlike.codegen.passes.share_reciprocals import share_reciprocals
from felixlike.codegen.passes.share_steps import shared_steps
from felixlike.codegen.passes.skip_hidden_keys import skip_hidden_keys
from felixlike.codegen.passes.skip_padding_taps import skip_padding
from felixlike.codegen.passes.split_column_groups import peel_columns
from felixlike.codegen.passes.tensor_cores import tensor_cores
from felixlike.codegen.passes.tile_rows import tile_rows
from felixlike.codegen.passes.transpose import transpose
from felixlike.codegen.passes.unaligned_parameters import unaligned_parameters
from felixlike.codegen.passes.vector_math import FUNCTIONS, vectorise_math
from felixlike.codegen.passes.vectorize_copies import copies_in_vectors
from felixlike.codegen.passes.vectorize_rows import rows_in_vectors
from felixlike.codegen.passes.vectorize_tail import peel_tails
from felixlike.codegen.passes.wrap_integers import wrap_integers, wrap_integers_on_gpus

__all__ = [
    "FUNCTIONS",
    "asynchronous_copies",
    "choose_lazily",
    "copies_in_vectors",
    "first_and_last",
    "from_infinity",
    "guard",
    "keep_nan",
    "keep_rounding",
    "multiply_pairs",
    "only_marked_are_asynchronous",
    "only_with_instructions",
    "peel_columns",
    "peel_tails",
    "plain_conditions",
    "prefetch",
    "rows_in_vectors",
    "share_reciprocals",
    "shared_steps",
    "skip_hidden_keys",
    "skip_padding",
    "tensor_cores",
    "tile_rows",
    "transpose",
    "unaligned_parameters",
    "vectorise_math",
    "wrap_integers",
    "wrap_integers_on_gpus",
    "write_out_halves",
]
