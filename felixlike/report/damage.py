"""The error for reports that were edited or damaged: which field, and what is wrong with it."""

from __future__ import annotations

import math
from typing import Any

from felixlike.errors import InvalidArtefact


def damaged(field: str, what: str) -> InvalidArtefact:
    """The error that says so."""
    return InvalidArtefact(f"its report is damaged: {field} {what}", where="report", remedy="save the model again")


def shown(value: Any) -> str:
    """A value in such an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_number(value: Any, *, whole: bool = False) -> bool:
    """Whether it is a finite number of usual size, or an integer of such."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
