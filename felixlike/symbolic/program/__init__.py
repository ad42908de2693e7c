"""Define symbolic programs: loops, accesses and stores with formulas for extents. Independent of TVM."""

from felixlike.symbolic.program.buffers import Buffer
from felixlike.symbolic.program.constraints import Constraint, tile_constraints
from felixlike.symbolic.program.indices import Access, Floor, Index, Lookup, Remainder
from felixlike.symbolic.program.loops import (
    PIPELINE,
    WITHIN_BLOCK,
    FullyFusedNest,
    Loop,
    PredicatedSplit,
    data_parallel,
    stores_under,
)
from felixlike.symbolic.program.program import Program
from felixlike.symbolic.program.stores import Operation, Store
from felixlike.symbolic.program.variables import Kind, Variable, groups

__all__ = [
    "PIPELINE",
    "WITHIN_BLOCK",
    "Access",
    "Buffer",
    "Constraint",
    "Floor",
    "FullyFusedNest",
    "Index",
    "Kind",
    "Lookup",
    "Loop",
    "Operation",
    "PredicatedSplit",
    "Program",
    "Remainder",
    "Store",
    "Variable",
    "data_parallel",
    "groups",
    "stores_under",
    "tile_constraints",
]
