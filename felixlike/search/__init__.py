"""Where to look next: strategies behind one interface, rounding, and the scheduling of rounds over tasks."""

from __future__ import annotations

from felixlike import options
from felixlike.search.candidate import Candidate
from felixlike.search.gradient import GradientOptions, GradientSearch
from felixlike.search.predicted import Predicted
from felixlike.search.random import RandomSearch
from felixlike.search.scheduler import Progress, next_task
from felixlike.search.space import Space
from felixlike.search.strategy import Key, Known, Strategy, draw

__all__ = [
    "STRATEGIES",
    "Candidate",
    "GradientOptions",
    "GradientSearch",
    "Key",
    "Known",
    "Predicted",
    "Progress",
    "RandomSearch",
    "Space",
    "Strategy",
    "draw",
    "make_strategy",
    "next_task",
]

STRATEGIES: dict[str, type[GradientSearch] | type[RandomSearch]] = {"gradient": GradientSearch, "random": RandomSearch}


def make_strategy(name: str) -> Strategy:
    """The strategy of this name. Raises InvalidOption for others."""
    return STRATEGIES[options.one_of(name, "strategy", STRATEGIES, what="a strategy")]()
