"""Design spaces of a task: MetaSchedule's own, and one whose sketches hold kernels as fast as hand-written ones."""

from felixlike.spaces.design import DesignSpace, default_space, own_space
from felixlike.spaces.registers import noted_accumulators

__all__ = ["DesignSpace", "default_space", "noted_accumulators", "own_space"]
