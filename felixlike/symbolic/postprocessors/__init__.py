"""What TVM does to a program after its trace: one file for each postprocessor that changes what features see.

DisallowDynamicLoop only refuses.
"""

from felixlike.symbolic.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.postprocessors.cooperative_fetch import cooperative_fetch
from felixlike.symbolic.postprocessors.gpu_code import extent_of, gpu_constraints, shared_bytes
from felixlike.symbolic.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll
from felixlike.symbolic.postprocessors.reduction_block import initial_path
from felixlike.symbolic.postprocessors.rewrite_layout import rewrite_layout
from felixlike.symbolic.postprocessors.tile_bounds import tile_bounds

__all__ = [
    "Limits",
    "compact_allocation",
    "cooperative_fetch",
    "extent_of",
    "gpu_constraints",
    "initial_path",
    "parallel_vectorize_unroll",
    "rewrite_layout",
    "shared_bytes",
    "tile_bounds",
]
