"""Evaluate models as the user passed them, as the reference for the compiled ones."""

from felixlike.frontend.originals.kinds import original_of
from felixlike.frontend.originals.original import Original

__all__ = ["Original", "original_of"]
