"""Planners: how the programs of an operator with dynamic sizes are chosen.

Input: a name as in `optimize(planner="ftuner")`, or a planner with options. Output: `Timed`, what measures best and the
default, or a paper's algorithm as published: `FTuner`, `DietCode`. docs/dynamic-shapes.md compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from felixlike._util import option_checks
from felixlike._util.wording import shown
from felixlike.dynamic.analysis import PSI
from felixlike.dynamic.crosspick import Stride
from felixlike.dynamic.sia import Sia, read_sia
from felixlike.errors import InvalidOption
from felixlike.hardware import kind_of

_EQUAL, _STRIDE = Sia(), Stride()


class _Measuring:
    """A planner that times programs, if the run's limits allow."""

    __slots__ = ()
    measures: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Timed(_Measuring):
    """Timings decide: DietCode's model predicts, the best programs and some of FTuner's score are timed.

    Attributes:
        sia: Weights of FTuner's score, which chooses some of the programs that are timed: a `Sia` or three numbers of
            at least 0.

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


@dataclass(frozen=True, slots=True)
class DietCode(_Measuring):
    """DietCode's search on GPUs: one micro-kernel cost model for all instances, and an evolutionary search over it.

    Tile sizes of thread blocks are sampled together and mutated, except the numbers of threads. The model predicts each
    uKernel at each instance, corrected by timings with one block on each multiprocessor and with as many as it holds.
    Each program has one uKernel. If programs may be timed, the best ones are, and the tree is.

    Attributes:
        population: uKernels of a generation. This and the next two are the defaults of Ansor, which DietCode extends.
        generations: Number of generations.
        mutation: Probability that a drawn uKernel is mutated.
        seed: Random seed of the search.

    Raises:
        InvalidOption: An option has an invalid value.
    """

    population: int = 2048
    generations: int = 4
    mutation: float = 0.85
    seed: int = 0

    def __post_init__(self) -> None:
        option_checks.whole(self.population, "population", least=1, most=2**16, where="planner")
        option_checks.whole(self.generations, "generations", most=1000, where="planner")
        option_checks.share(self.mutation, "mutation", where="planner")
        option_checks.seed(self.seed, where="planner")


Planner = Timed | FTuner | DietCode
"""A planner with its options."""

PLANNERS: Mapping[str, type[Planner]] = MappingProxyType({"timed": Timed, "ftuner": FTuner, "dietcode": DietCode})
"""The planners by name."""


def check_target(planner: Planner, target: Any) -> None:
    """Raise InvalidOption if a planner does not support a target."""
    if isinstance(planner, DietCode) and not kind_of(target).binds_threads:
        raise InvalidOption(
            f"DietCode's search evolves thread blocks of GPUs, but the target is {target.kind.name}",
            where="planner",
            remedy="leave it out: on CPUs all register tiles are listed, predicted and timed",
        )


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
    if kind is Timed or kind is FTuner:
        return kind(sia=sia)
    raise InvalidOption(
        f"the planner {planner!r} does not use FTuner's score",
        where="sia",
        remedy="leave it out, or use the planner timed or ftuner",
    )
