"""Models as the user gave them, evaluated beside what is compiled of them."""

from felixlike.frontend.originals.kinds import original_of
from felixlike.frontend.originals.original import Original

__all__ = ["Original", "original_of"]
