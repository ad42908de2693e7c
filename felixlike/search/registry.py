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
from felixlike.search.presets import PRESETS, made
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
    """Return the names of all strategies: built-in ones, presets, registered ones."""
    ours = [*STRATEGIES, *PRESETS]
    return [*ours, *(name for name in _registered() if name not in ours)]


def make_strategy(strategy: Any, **options: Any) -> Strategy:
    """Return the strategy with a name, or the strategy itself.

    Args:
        strategy: A name of `strategy_names()`, or an instance of `Strategy`.
        options: Options of a built-in strategy or a preset, by name.

    Returns:
        The strategy; a name gives one with default options, or those of the preset.

    Raises:
        InvalidOption: `strategy` is something else, a registered strategy cannot be created, an option is unknown or
            invalid or contradicts the preset, or there are options for an instance or a registered strategy.

    Example:
        >>> make_strategy("gradient", seeds=64)
    """
    if isinstance(strategy, Strategy):
        _require_none(options, "a strategy that exists already")
        return strategy
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise InvalidOption(
            f"expected an instance, got the class {strategy.__name__}",
            where="strategy",
            remedy=f"pass {strategy.__name__}()",
        )
    name = option_checks.one_of(strategy, "strategy", strategy_names(), what="a strategy")
    if name in PRESETS:
        return PRESETS[name].make(**options)
    if name in STRATEGIES:
        return made(STRATEGIES[name], options, where=f"strategy {name}")
    _require_none(options, f"{name!r}, which another package registers")
    return _made(_registered()[name])


def _require_none(options: dict[str, Any], what: str) -> None:
    """Raise InvalidOption if there are options."""
    if options:
        raise InvalidOption(
            f"got the options {', '.join(options)} for {what}",
            where="strategy",
            remedy="create the strategy with these options and pass it",
        )


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
