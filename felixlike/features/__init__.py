"""Describe programs as numbers: formulas of features in the schedule variables, exact at every valid point."""

from felixlike.features.formulas import FeatureArray, Formulas, StructureFormulas, formulas
from felixlike.features.table import COLUMNS, NAMES, SLOTS, VERSION, Column

__all__ = [
    "COLUMNS",
    "NAMES",
    "SLOTS",
    "VERSION",
    "Column",
    "FeatureArray",
    "Formulas",
    "StructureFormulas",
    "formulas",
]
