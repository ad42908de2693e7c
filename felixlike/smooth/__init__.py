"""Make formulas smooth: equality saturation, smooth kernels, and batched torch code."""

from felixlike.errors import NoSmoothForm
from felixlike.smooth.lower import Stacked
from felixlike.smooth.relax import Relaxed, relax, together
from felixlike.smooth.saturate import SaturationLimits, saturate

__all__ = ["NoSmoothForm", "Relaxed", "SaturationLimits", "Stacked", "relax", "saturate", "together"]
