"""Planners: how the programs of an operator with dynamic sizes are chosen.

Input: a name as in `optimize(planner="ftuner")`, or a planner with options. Output: `Timed`, what measures best and the
default, or a paper's algorithm as published: `FTuner`, `DietCode`. docs/dynamic-shapes.md compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar

from felixlike._util import option_checks
from felixlike._util.wording import choose_from, shown
from felixlike.dynamic.analysis import PSI
from felixlike.dynamic.crosspick import Stride
from felixlike.dynamic.sia import Sia, read_sia
from felixlike.errors import InvalidOption

_EQUAL, _STRIDE = Sia(), Stride()


class _Measuring:
    """A planner that times programs, if the run's limits allow."""

    __slots__ = ()
    measures: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Timed(_Measuring):
    """Timings decide: DietCode's model predicts, the best programs and some of FTuner's score are timed.

    Attributes:
        sia: Weights of FTuner's score, which chooses the widths and some of the programs that are timed: a `Sia` or
            three numbers of at least 0.

    Raises:
        InvalidOption: The weights are invalid.
    """

    sia: Any = _EQUAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "sia", read_sia(self.sia))


@dataclass(frozen=True, slots=True)
class FTuner:
    """FTuner as published: nothing is measured, and the score alone chooses the program of each size.

    The filter yields the uKernels (§IV). Those and pairs of those that cover the main axis exactly, the largest dynamic
    one, are the programs (§V-A, algorithm 2). Each size gets the program with the best score (§V-B, eq. 1).

    Attributes:
        sia: Weights of CMR, Pad and Occ (c₀, c₁, c₂): a `Sia` or three numbers of at least 0.
        psi: ψ, the least compute-to-memory ratio (eq. 6).
        stride: ε, λ and their steps (algorithm 1).

    Raises:
        InvalidOption: An option has an invalid value.

    Example:
        >>> fx.optimize(model, ((length, 768),), planner=dynamic.FTuner(sia=(2, 1, 1)))
    """

    sia: Any = _EQUAL
    psi: float = PSI
    stride: Stride = _STRIDE
    measures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sia", read_sia(self.sia))
        object.__setattr__(self, "psi", option_checks.real(self.psi, "psi", where="planner"))
        option_checks.of_kind(self.stride, Stride, "stride", where="planner", remedy="pass felixlike.dynamic.Stride(…)")


Planner = Timed | FTuner
"""A planner with its options."""

PLANNERS: Mapping[str, type[Planner]] = MappingProxyType({"timed": Timed, "ftuner": FTuner})
"""The planners by name."""


def make_planner(planner: Any, sia: Any = None) -> Planner:
    """Return a planner by its name, or a planner as it is.

    Args:
        planner: A name, a planner, or None for the default.
        sia: Weights of the score for a planner by its name; None for the planner's.

    Raises:
        InvalidOption: The planner is unknown, the weights are invalid, or the planner has weights of its own or none.
    """
    if isinstance(planner, Planner):
        if sia is not None:
            raise InvalidOption(
                f"it is set, and so is planner={shown(planner)}", where="sia", remedy="give the weights to the planner"
            )
        return planner
    kind = PLANNERS["timed"]
    if planner is not None:
        kind = PLANNERS[option_checks.one_of(planner, "planner", PLANNERS, what="a planner")]
    if sia is None:
        return kind()
    if "sia" not in (field.name for field in fields(kind)):
        with_score = [name for name, other in PLANNERS.items() if "sia" in other.__slots__]
        raise InvalidOption(
            f"the planner {planner!r} does not use FTuner's score", where="sia", remedy=choose_from(planner, with_score)
        )
    return kind(sia=sia)
