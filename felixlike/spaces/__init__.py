"""Generate the design spaces of a task: MetaSchedule's default space, and a space of felixlike's own schedule rules."""

from felixlike.spaces.cpu.register_bounds import Bounds, noted_bounds
from felixlike.spaces.design import (
    FITS_REGISTERS,
    IN_ITS_FORM,
    KEEPS_TO_BOUNDS,
    ROUNDS_FACTORS,
    DesignSpace,
    Postprocessor,
    default_space,
    own_space,
    postprocessors,
)

__all__ = [
    "FITS_REGISTERS",
    "IN_ITS_FORM",
    "KEEPS_TO_BOUNDS",
    "ROUNDS_FACTORS",
    "Bounds",
    "DesignSpace",
    "Postprocessor",
    "default_space",
    "noted_bounds",
    "own_space",
    "postprocessors",
]
