"""Sketches as symbolic programs: variables, constraints, loop nests with formulas for extents."""

from felixlike.symbolic.nest import NestLoop, concrete_nest
from felixlike.symbolic.program import Program
from felixlike.symbolic.sketch import Points, Sketch, Structure
from felixlike.symbolic.space import SpaceName, check_space, sketches, stored_sketch
from felixlike.symbolic.variables import Kind, Variable

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
    "sketches",
    "stored_sketch",
]
