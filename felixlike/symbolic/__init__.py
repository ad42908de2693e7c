"""Describe sketches as symbolic programs: variables, constraints, and loop nests whose extents are formulas."""

from felixlike.symbolic.program import Program
from felixlike.symbolic.program.nest import NestLoop, concrete_nest
from felixlike.symbolic.program.variables import Kind, Variable
from felixlike.symbolic.replay.points import Points
from felixlike.symbolic.replay.sketch import Sketch
from felixlike.symbolic.replay.structure import Structure
from felixlike.symbolic.sketch_io import kept_sketch, sketch_data
from felixlike.symbolic.space import SpaceName, check_space, is_own, sketches, stored_sketch

__all__ = [
    "Kind",
    "NestLoop",
    "Points",
    "Program",
    "Sketch",
    "SpaceName",
    "Structure",
    "Variable",
    "check_space",
    "concrete_nest",
    "is_own",
    "kept_sketch",
    "sketch_data",
    "sketches",
    "stored_sketch",
]
