"""What TVM does to a program after its trace: one file for each postprocessor that changes what features see.

RewriteReductionBlock needs no model: it moves an initial constant store out of the reduction's loops, and constant stores are
not counted. RewriteLayout changes nothing without layout-free buffers. DisallowDynamicLoop only refuses.
"""

from felixlike.symbolic.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll

__all__ = ["Limits", "compact_allocation", "parallel_vectorize_unroll"]
