"""Choose the candidates to measure: search strategies, rounding, and the scheduling of rounds over tasks."""

from __future__ import annotations

import warnings
from typing import Any

from felixlike.search.candidate import Candidate
from felixlike.search.predicted import Predicted
from felixlike.search.presets import PRESETS, Preset
from felixlike.search.registry import STRATEGIES, make_strategy, strategy_names
from felixlike.search.scheduler import (
    Progress,
    Scheduling,
    next_task,
    seconds_to_save,
    similarity_tag,
    worthwhile,
)
from felixlike.search.space import Space
from felixlike.search.strategies.adatune import AdaTune
from felixlike.search.strategies.evolutionary import Evolutionary
from felixlike.search.strategies.genetic import Genetic, TensorComprehensions
from felixlike.search.strategies.gradient import Gradient
from felixlike.search.strategies.lfbo import LFBO
from felixlike.search.strategies.metaschedule import MetaSchedule
from felixlike.search.strategies.random import Random
from felixlike.search.strategy import Key, Measured, Observations, Strategy, draw

__all__ = [
    "LFBO",
    "PRESETS",
    "STRATEGIES",
    "AdaTune",
    "Candidate",
    "Evolutionary",
    "Genetic",
    "Gradient",
    "Key",
    "Measured",
    "MetaSchedule",
    "Observations",
    "Predicted",
    "Preset",
    "Progress",
    "Random",
    "Scheduling",
    "Space",
    "Strategy",
    "TensorComprehensions",
    "draw",
    "make_strategy",
    "next_task",
    "seconds_to_save",
    "similarity_tag",
    "strategy_names",
    "worthwhile",
]


def __getattr__(name: str) -> Any:
    if name != "Known":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("felixlike.search.Known is now Observations", DeprecationWarning, stacklevel=2)
    return Observations
