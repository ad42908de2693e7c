"""Strategies by name: ours, and those that other packages register.

In: a name, or a strategy. Out: a strategy. A package registers its own with an entry point of the group
`felixlike.strategies`, a subclass of `Strategy` that can be made without arguments:

    [project.entry-points."felixlike.strategies"]
    mine = "my_package.search:Mine"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from felixlike._util import option_checks
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidOption, first_line
from felixlike.search.strategies.adatune import AdaTune
from felixlike.search.strategies.evolutionary import Evolutionary
from felixlike.search.strategies.genetic import Genetic
from felixlike.search.strategies.gradient import Gradient
from felixlike.search.strategies.lfbo import LFBO
from felixlike.search.strategies.metaschedule import MetaSchedule
from felixlike.search.strategies.random import Random
from felixlike.search.strategy import Strategy

STRATEGIES: dict[str, type[Strategy]] = {
    "gradient": Gradient,
    "evolutionary": Evolutionary,
    "adatune": AdaTune,
    "lfbo": LFBO,
    "genetic": Genetic,
    "random": Random,
    "metaschedule": MetaSchedule,
}
"""Ours, by the name that users give."""

GROUP = "felixlike.strategies"


def strategy_names() -> list[str]:
    """All names, ours first."""
    return [*STRATEGIES, *(name for name in _registered() if name not in STRATEGIES)]


def make_strategy(strategy: Any) -> Strategy:
    """The strategy of this name, with its defaults; a strategy as it is. Raises InvalidOption for others, and for one
    of another package that cannot be made."""
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise InvalidOption(
            f"{strategy.__name__} is a class", where="strategy", remedy=f"make one: {strategy.__name__}()"
        )
    name = option_checks.one_of(strategy, "strategy", strategy_names(), what="a strategy")
    return STRATEGIES[name]() if name in STRATEGIES else _made(_registered()[name])


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _made(point: EntryPoint) -> Strategy:
    where = f"strategy {point.name!r} ({point.value})"
    try:
        found = point.load()()
    except Exception as error:  # whatever another package does
        raise InvalidOption(
            f"it cannot be made: {type(error).__name__}: {first_line(error)}",
            where=where,
            remedy="mend or uninstall the package that registers it",
        ) from error
    if not isinstance(found, Strategy):
        raise InvalidOption(
            f"it is {kind_of(found)}, no strategy",
            where=where,
            remedy="make it a subclass of felixlike.search.Strategy",
        )
    return found
