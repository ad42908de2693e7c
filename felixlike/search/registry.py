"""Look up search strategies by name: built-in ones and those registered by other packages.

Input: a name or a strategy. Output: a strategy. A package registers a strategy by an entry point of the group
`felixlike.strategies`, which names a subclass of `Strategy` whose constructor needs no arguments:

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
from felixlike.search.strategies.genetic import Genetic, TensorComprehensions
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
    "tensor-comprehensions": TensorComprehensions,
    "random": Random,
    "metaschedule": MetaSchedule,
}
"""Built-in strategies by name."""

GROUP = "felixlike.strategies"
"""Group of the entry points of registered strategies."""


def strategy_names() -> list[str]:
    """Return the names of all strategies, built-in ones first."""
    return [*STRATEGIES, *(name for name in _registered() if name not in STRATEGIES)]


def make_strategy(strategy: Any) -> Strategy:
    """Return the strategy with a name, or the strategy itself.

    Args:
        strategy: A name of `strategy_names()`, or an instance of `Strategy`.

    Returns:
        The strategy; a name gives one with default options.

    Raises:
        InvalidOption: `strategy` is something else, or a registered strategy cannot be created.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise InvalidOption(
            f"expected an instance, got the class {strategy.__name__}",
            where="strategy",
            remedy=f"pass {strategy.__name__}()",
        )
    name = option_checks.one_of(strategy, "strategy", strategy_names(), what="a strategy")
    return STRATEGIES[name]() if name in STRATEGIES else _made(_registered()[name])


def _registered() -> dict[str, EntryPoint]:
    """Return the entry points of registered strategies by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _made(point: EntryPoint) -> Strategy:
    """Create a registered strategy. Raise InvalidOption if this fails."""
    where = f"strategy {point.name!r} ({point.value})"
    try:
        instance = point.load()()
    except Exception as error:  # another package's code may raise anything
        raise InvalidOption(
            f"the strategy cannot be created: {type(error).__name__}: {first_line(error)}",
            where=where,
            remedy="fix or uninstall the package that registers it",
        ) from error
    if not isinstance(instance, Strategy):
        raise InvalidOption(
            f"expected a felixlike.search.Strategy, got {kind_of(instance)}",
            where=where,
            remedy="register a subclass of felixlike.search.Strategy",
        )
    return instance
