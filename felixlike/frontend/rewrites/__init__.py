"""What is rewritten in a Relax module before it is fused: a file a rewrite."""

from felixlike.frontend.rewrites.deconvolution import in_phases

__all__ = ["in_phases"]
