"""Programs as numbers: feature formulas of the schedule variables, exact at every valid point."""

from felixlike.features.formulas import FeatureArray, Formulas, StructureFormulas, formulas
from felixlike.features.table import COLUMNS, NAMES, SLOTS, Column

__all__ = [
    "COLUMNS",
    "NAMES",
    "SLOTS",
    "Column",
    "FeatureArray",
    "Formulas",
    "StructureFormulas",
    "formulas",
]
