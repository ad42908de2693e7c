"""What is rewritten in a Relax module before it is fused: a file a rewrite."""

from felixlike.frontend.rewrites.batch_norm import with_folded_batch_norms
from felixlike.frontend.rewrites.deconvolution import in_phases
from felixlike.frontend.rewrites.indices import with_safe_indices
from felixlike.frontend.rewrites.pads import with_absorbed_pads

__all__ = ["in_phases", "with_absorbed_pads", "with_folded_batch_norms", "with_safe_indices"]
