"""Check the values of saved reports, and create the error for damaged ones."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from felixlike.errors import InvalidArtefact


def damaged(field: str, what: str) -> InvalidArtefact:
    """Create the error for a damaged report. field: name of the field. what: what is wrong with it."""
    return InvalidArtefact(f"its report is damaged: {field} {what}", where="report", remedy="save the model again")


def shown(value: Any) -> str:
    """Return a value as text for an error, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer within 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite float, or an integer within 64 bits."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_latency(seconds: float) -> bool:
    """Return whether a latency is between 1e-12 and 1e9 s. Other values were not measured and cannot be plotted."""
    return 1e-12 <= seconds <= 1e9


def is_score(score: float) -> bool:
    """Return whether a predicted score can be plotted: its magnitude is at most 1e9. nan (no prediction) cannot."""
    return abs(score) <= 1e9
