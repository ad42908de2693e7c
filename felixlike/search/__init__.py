"""Where to look next: strategies behind one interface, rounding, and the scheduling of rounds over tasks."""

from __future__ import annotations

from felixlike.search.candidate import Candidate
from felixlike.search.predicted import Predicted
from felixlike.search.registry import STRATEGIES, make_strategy, strategy_names
from felixlike.search.scheduler import Progress, next_task
from felixlike.search.space import Space
from felixlike.search.strategies.adatune import AdaTune
from felixlike.search.strategies.evolutionary import Evolutionary
from felixlike.search.strategies.genetic import Genetic
from felixlike.search.strategies.gradient import Gradient
from felixlike.search.strategies.lfbo import LFBO
from felixlike.search.strategies.metaschedule import MetaSchedule
from felixlike.search.strategies.random import Random
from felixlike.search.strategy import Key, Known, Measured, Strategy, draw

__all__ = [
    "LFBO",
    "STRATEGIES",
    "AdaTune",
    "Candidate",
    "Evolutionary",
    "Genetic",
    "Gradient",
    "Key",
    "Known",
    "Measured",
    "MetaSchedule",
    "Predicted",
    "Progress",
    "Random",
    "Space",
    "Strategy",
    "draw",
    "make_strategy",
    "next_task",
    "strategy_names",
]
