"""Define the interface of search strategies: propose candidates of a task and observe their measurements.

Inputs: a space and its observations. Output: candidates that have not been measured. Budgets, measuring and records are
the same for all strategies.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from felixlike._util import option_checks
from felixlike.costmodel import CostModel
from felixlike.measure import Timing
from felixlike.search.candidate import Candidate
from felixlike.search.scheduler import Scheduling
from felixlike.search.space import Space
from felixlike.symbolic import Sketch

Key = tuple[str, tuple[int, ...]]
"""Identity of a candidate: its sketch's key and its point."""


@dataclass(slots=True)
class Observations:
    """The measurements of one task.

    Attributes:
        seen: Keys of all measured candidates, failures included.
        best: (seconds, candidate) of the correct ones, fastest first.
    """

    seen: set[Key] = field(default_factory=set)
    best: list[tuple[float, Candidate]] = field(default_factory=list)

    def add(self, candidate: Candidate, seconds: float) -> None:
        """Add a measurement; inf seconds for a failure."""
        self.seen.add(candidate.key)
        if np.isfinite(seconds):
            insort(self.best, (seconds, candidate), key=itemgetter(0))


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured candidate.

    Attributes:
        candidate: The candidate.
        seconds: Seconds per call; inf if it failed or its output was wrong.
    """

    candidate: Candidate
    seconds: float


class Strategy:
    """Base class of search strategies.

    Subclasses override `propose`, and `observe` and `begin` if they learn from measurements. One strategy serves all
    tasks of a run, each with its own `Space`. The same seed, model and measurements must give the same candidates. If a
    strategy raises, it is called again for a space without formulas; if it raises again, the search of the task ends.
    Both are reported in a warning, and measurements are kept.

    Attributes:
        trials_per_round: Maximum number of candidates of a round; None for the default of 8.
        scheduling: How the task of a round is chosen.
        timing: How the pool that a run opens times candidates; None for the defaults of `Timing`.

    Example:
        >>> class First(Strategy):
        ...     def propose(self, space, known, count, rng):
        ...         return draw(space, count, known.seen, rng, origin="first")
    """

    trials_per_round: int | None = None
    scheduling: Scheduling = Scheduling()
    timing: Timing | None = None

    def begin(self, model: CostModel) -> None:
        """Start a run and forget the previous one.

        Args:
            model: The run's cost model, shared by its tasks. A strategy that uses it trains it in `observe`.
        """

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return the candidates to measure next.

        Args:
            space: The task's search space.
            known: The task's measurements.
            count: Maximum number of candidates.
            rng: The only source of random numbers.

        Returns:
            At most `count` different candidates that are not in `known.seen`; fewer only if no others exist.

        Raises:
            OutOfTime: `space.deadline` has passed. This ends the search of the task.
        """
        raise NotImplementedError

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Learn from measurements of a task.

        Args:
            space: The task's search space.
            measured: The measurements in the order of measuring, each candidate once.
            recalled: True for all records of a store, before the first round; False for the results of a round.
        """


@dataclass(eq=False, kw_only=True)
class Configurable(Strategy):
    """Base class of the built-in strategies: the attributes of `Strategy` are options.

    Args:
        trials_per_round: As for `Strategy`.
        scheduling: As for `Strategy`.
        timing: As for `Strategy`.

    Raises:
        InvalidOption: A value is out of range.
    """

    trials_per_round: int | None = None
    scheduling: Scheduling = Scheduling()  # noqa: RUF009  it is frozen
    timing: Timing | None = None

    def __post_init__(self) -> None:
        where = type(self).__name__
        if self.trials_per_round is not None:
            self.trials_per_round = option_checks.whole(
                self.trials_per_round, "trials_per_round", least=1, where=where, otherwise="None"
            )
        option_checks.of_kind(self.scheduling, Scheduling, "scheduling", where=where, remedy="pass a Scheduling")
        if self.timing is not None:
            option_checks.of_kind(self.timing, Timing, "timing", where=where, remedy="pass a Timing, or None")


def draw(space: Space, count: int, seen: AbstractSet[Key], rng: np.random.Generator, *, origin: str) -> list[Candidate]:
    """Sample random valid candidates, with equal probability of each sketch.

    Args:
        space: The task's search space.
        count: Number of candidates.
        seen: Keys of candidates to skip.
        rng: Source of random numbers.
        origin: `Candidate.origin` of the result.

    Returns:
        Different candidates, fewer than `count` if a small space has no more.
    """
    candidates: dict[Key, Candidate] = {}
    if not space.sketches:
        return []
    for _ in range(8):  # small spaces repeat the same points
        missing = count - len(candidates)
        if missing <= 0:
            break
        shares = np.bincount(rng.integers(len(space.sketches), size=2 * missing), minlength=len(space.sketches))
        fresh: list[Candidate] = []
        for sketch, share in zip(space.sketches, shares, strict=True):
            if share:
                points = sketch.sample(int(share), int(rng.integers(2**31)))
                fresh += [Candidate(sketch, tuple(p), float("nan"), origin) for p in points.tolist()]
        for i in rng.permutation(len(fresh)):
            if fresh[i].key not in seen and len(candidates) < count:
                candidates.setdefault(fresh[i].key, fresh[i])
    return list(candidates.values())


def aside(space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """Sample the part of a batch reserved for non-symbolic sketches, which have no formulas.

    Their part equals their share among the sketches, at least 1/2 if one of them is the fastest, and at most 1/8 if a
    symbolic one is."""
    if not space.non_symbolic or not count:
        return []
    share = len(space.non_symbolic) / len(space.sketches)
    if known.best:
        leads = not known.best[0][1].sketch.is_symbolic
        share = max(share, 0.5) if leads else min(share, 0.125)
    number = max(1, round(share * count))
    candidates: dict[Key, Candidate] = {}
    for _ in range(4 * number):
        if len(candidates) >= number:
            break
        sketch = space.non_symbolic[int(rng.integers(len(space.non_symbolic)))]
        point = tuple(sketch.sample(1, int(rng.integers(2**31)))[0].tolist())
        candidate = Candidate(sketch, point, float("nan"), "sampled")
        if candidate.key not in known.seen:
            candidates[candidate.key] = candidate
    return list(candidates.values())


def by_sketch(candidates: Sequence[Candidate]) -> list[tuple[Sketch, list[int]]]:
    """Group candidates by sketch, since the shape of features depends on the sketch.

    Return (sketch, indices of its candidates), in the order of first appearance."""
    groups: dict[str, tuple[Sketch, list[int]]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(candidate.sketch.key, (candidate.sketch, []))[1].append(index)
    return list(groups.values())
