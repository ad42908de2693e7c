"""What TVM does to a program after its trace: one file for each postprocessor that changes what features see.

RewriteLayout changes nothing without layout-free buffers, and DisallowDynamicLoop only refuses.
"""

from felixlike.symbolic.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll
from felixlike.symbolic.postprocessors.reduction_block import initial_path

__all__ = ["Limits", "compact_allocation", "initial_path", "parallel_vectorize_unroll"]
