"""The error for reports that were edited or damaged: which field, and what is wrong with it."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from felixlike.errors import InvalidArtefact


def damaged(field: str, what: str) -> InvalidArtefact:
    """The error that says so."""
    return InvalidArtefact(f"its report is damaged: {field} {what}", where="report", remedy="save the model again")


def shown(value: Any) -> str:
    """A value in such an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is an integer of usual size."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number, or an integer of usual size."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_latency(seconds: float) -> bool:
    """Whether a call may take so long; what is shorter or longer was not measured, and can be drawn on no axis."""
    return 1e-12 <= seconds <= 1e9


def is_score(score: float) -> bool:
    """Whether it is a prediction that can be drawn; nan where nothing was predicted."""
    return abs(score) <= 1e9
