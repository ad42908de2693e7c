"""Rewrite a Relax module before it is fused. Each file holds one rewrite."""

from felixlike.frontend.rewrites.bfloat16_factors import with_bfloat16_factors, with_wide_constants
from felixlike.frontend.rewrites.channels_last import with_channels_last
from felixlike.frontend.rewrites.clamp_lookups import with_safe_indices
from felixlike.frontend.rewrites.constants_aside import with_computed_constants, without_equal_expressions
from felixlike.frontend.rewrites.even_channels import with_even_channels
from felixlike.frontend.rewrites.flat_convolutions import with_flat_convolutions
from felixlike.frontend.rewrites.float64_norms import with_wide_norms
from felixlike.frontend.rewrites.fold_batch_norm import with_folded_batch_norms
from felixlike.frontend.rewrites.fold_padding import with_absorbed_pads
from felixlike.frontend.rewrites.fuse_attention import with_fused_attention
from felixlike.frontend.rewrites.group_heads import with_grouped_heads
from felixlike.frontend.rewrites.isolate_broadcast_gates import with_gates_apart
from felixlike.frontend.rewrites.isolate_stacks import with_stacks_apart
from felixlike.frontend.rewrites.join_small_kernels import with_joined_small_kernels
from felixlike.frontend.rewrites.limit_recomputation import with_limited_recomputation
from felixlike.frontend.rewrites.merge_projections import with_joint_projections
from felixlike.frontend.rewrites.moved_constants import with_moved_constants
from felixlike.frontend.rewrites.nan_aware_sort import with_total_order
from felixlike.frontend.rewrites.narrow_tensors import with_narrow_tensors, with_own_conversions
from felixlike.frontend.rewrites.pad_channels_to_vectors import with_room
from felixlike.frontend.rewrites.pad_pools_with_infinity import with_infinite_padding
from felixlike.frontend.rewrites.pool_by_dimensions import with_pools_by_dimension
from felixlike.frontend.rewrites.read_transposed_factors import with_transposed_factors
from felixlike.frontend.rewrites.scatter_rows import with_row_scatters
from felixlike.frontend.rewrites.search_boundaries import with_searched_boundaries
from felixlike.frontend.rewrites.share_batched_factors import with_shared_factors
from felixlike.frontend.rewrites.sink_reshapes import with_late_reshapes
from felixlike.frontend.rewrites.split_deconvolution import in_phases
from felixlike.frontend.rewrites.two_pass_group_norm import with_group_norms_in_two_passes
from felixlike.frontend.rewrites.winograd import with_fast_convolutions
from felixlike.frontend.rewrites.zero_factors import with_zero_factors

__all__ = [
    "in_phases",
    "with_absorbed_pads",
    "with_bfloat16_factors",
    "with_channels_last",
    "with_computed_constants",
    "with_even_channels",
    "with_fast_convolutions",
    "with_flat_convolutions",
    "with_folded_batch_norms",
    "with_fused_attention",
    "with_gates_apart",
    "with_group_norms_in_two_passes",
    "with_grouped_heads",
    "with_infinite_padding",
    "with_joined_small_kernels",
    "with_joint_projections",
    "with_late_reshapes",
    "with_limited_recomputation",
    "with_moved_constants",
    "with_narrow_tensors",
    "with_own_conversions",
    "with_pools_by_dimension",
    "with_room",
    "with_row_scatters",
    "with_safe_indices",
    "with_searched_boundaries",
    "with_shared_factors",
    "with_stacks_apart",
    "with_total_order",
    "with_transposed_factors",
    "with_wide_constants",
    "with_wide_norms",
    "with_zero_factors",
    "without_equal_expressions",
]
