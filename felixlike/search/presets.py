"""Published algorithms as options of the strategies here.

Input: a preset's name. Output: a strategy. A preset changes nothing but options, so each part of an algorithm can be
switched on or off alone. docs/strategies.md says what differs from the papers, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from felixlike._util.wording import shown
from felixlike.errors import InvalidOption
from felixlike.measure import EVALUATORS
from felixlike.search.descent import Descent
from felixlike.search.scheduler import Scheduling
from felixlike.search.strategies.adatune import AdaTune
from felixlike.search.strategies.evolutionary import Evolutionary
from felixlike.search.strategies.gradient import Gradient
from felixlike.search.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Preset:
    """A published algorithm.

    Attributes:
        name: Name of the preset, as in `optimize(strategy=…)`.
        strategy: The strategy that has the algorithm's parts.
        options: The options of the algorithm.
        source: Where it is published.

    Example:
        >>> felix = fx.search.PRESETS["felix"]
        >>> fx.search.Gradient(**{**felix.options, "explore": 0.125})  # Felix with random candidates
    """

    name: str
    strategy: type[Strategy]
    options: Mapping[str, Any]
    source: str

    def make(self, **options: Any) -> Strategy:
        """Return the strategy with the preset's options.

        Args:
            options: Further options of the strategy.

        Raises:
            InvalidOption: An option has a value that contradicts the preset.
        """
        for name, value in options.items():
            if name in self.options and not _equal(self.options[name], value):
                raise InvalidOption(
                    f"{name}={shown(value)} contradicts the preset, which has {name}={shown(self.options[name])}",
                    where=f"strategy {self.name}",
                    remedy=f"leave it out, or change a copy by dataclasses.replace(make_strategy({self.name!r}), …)",
                )
        return made(self.strategy, {**self.options, **options}, where=f"strategy {self.name}")


def made(strategy: type[Strategy], options: Mapping[str, Any], *, where: str) -> Strategy:
    """Return a strategy with options; raise InvalidOption for one that it does not have."""
    try:
        return strategy(**options)
    except TypeError as error:
        raise InvalidOption(str(error), where=where, remedy=f"see help(felixlike.search.{strategy.__name__})") from None


def _equal(one: Any, other: Any) -> bool:
    """Return whether values of an option are equal; 1 and True are not."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


_FELIX = Preset(
    "felix",
    Gradient,
    MappingProxyType(
        {
            "pool": 8,
            "seeds": 8,
            "elite": 0,
            "noise": 0.0,
            "structures": 8,
            "paths": 8,
            "keep_structures": False,
            "neighbours": 0,
            "generations": 0,
            "explore": 0.0,
            "optimism": 0.0,
            "apart": 0.0,
            "diversify": False,
            "trees": False,
            "correction": False,
            "trials_per_round": 16,
            # The paper has no values for λ and the step size. λ = 5 is from an early version of the authors' code. The
            # steps there are 0.5 in powers of two at first and a fifth of that in the end.
            "descent": Descent(
                steps=200,
                keep_every=1,
                learning_rate=0.35,
                cooled=0.2,
                blur=1.0,
                penalty=5.0,
                scaled_penalty=False,
            ),
            "scheduling": Scheduling(per_second=False),
        }
    ),
    "Felix (ASPLOS 2024), §3.4, Algorithm 1",
)

_ANSOR = Preset(
    "ansor",
    Evolutionary,
    MappingProxyType(
        {
            "population": 2048,
            "measured": 0.2,
            "generations": 4,
            "mutation": 0.85,
            "explore": 0.05,
            "trees": False,
            "correction": False,
            "trials_per_round": 64,
            "scheduling": Scheduling(similarity=2.0, per_second=False),
        }
    ),
    "Ansor (OSDI 2020) as in Felix, §6: with the same network",
)


def _autotvm(name: str, **parts: Any) -> Preset:
    """Return one of the variants that AdaTune's ablation compares: AutoTVM's defaults with some parts exchanged."""
    defaults = {
        "chains": 128,
        "steps": 500,
        "patience": 50,
        "persistent": True,
        "hot": 1.0,
        "trials_per_round": 64,
    }
    return Preset(name, AdaTune, MappingProxyType(defaults | parts), "AdaTune (NeurIPS 2020), §5.3")


_FIXED = {"epsilon": 0.05}
_CONTEXTUAL = {"epsilon": None}
_ABLATION = (
    _autotvm("xgb+sa+de", surrogate="xgboost", trees=100, timing=EVALUATORS["deterministic"], **_FIXED),
    _autotvm("rfei+sa+de", surrogate="forest", timing=EVALUATORS["deterministic"], **_FIXED),
    _autotvm("rfei+csa+de", surrogate="forest", timing=EVALUATORS["deterministic"], **_CONTEXTUAL),
    _autotvm("rfei+csa+ae", surrogate="forest", timing=EVALUATORS["adaptive"], **_CONTEXTUAL),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in (_FELIX, _ANSOR, *_ABLATION)})
"""Published algorithms by name."""
