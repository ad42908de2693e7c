"""Choose the task of the next round: every task once, then the one with the largest expected gain per second.

Inputs: each task's weight, its best latency after each round and the cost of its rounds. Output: the index of a task.
The rule is Ansor's gradient (Zheng et al. 2020, §6), which MetaSchedule's task scheduler uses too. It is computed per
candidate instead of per round, since rounds differ in size, and per second, since candidates differ in cost:

    gain = weight · ( α · recent fall per candidate + (1 − α) · fall ) / seconds per candidate
    fall = best / candidates
    fall = max( best / candidates, (best − β · operations / V) / candidates per round )    with the similarity term

V is the highest speed, in operations per second, among similar tasks. Tasks are similar if they consist of the same
operators and have about the same number of operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike.frontend.task import Task
from felixlike.spaces.blocks import realizes

_LOG_BASE = 1.618
"""Base of the logarithm that groups tasks by their number of operations: Ansor's value."""

_PATIENCE = 5
"""Rounds that a slow task may have beyond those of all similar ones before it counts as dissimilar: Ansor's value."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Options of the task scheduler.

    Attributes:
        alpha: Weight of the recent slope in the expected gain, 0 to 1: the default of Ansor and MetaSchedule.
        window: Number of rounds over which the recent slope is taken: the default of Ansor and MetaSchedule.
        similarity: β, how much slower than the fastest similar task a task is expected to become; Ansor's value is 2.
            None leaves the similarity term out, as MetaSchedule does.
        per_second: Whether the gain is divided by the seconds that a candidate costs. Ansor does not divide.

    Raises:
        InvalidOption: A value is out of range.
    """

    alpha: float = 0.2
    window: int = 3
    similarity: float | None = None
    per_second: bool = True

    def __post_init__(self) -> None:
        where = "Scheduling"
        object.__setattr__(self, "alpha", option_checks.share(self.alpha, "alpha", where=where))
        object.__setattr__(self, "window", option_checks.whole(self.window, "window", least=1, where=where))
        if self.similarity is not None:
            beta = option_checks.real(self.similarity, "similarity", positive=True, where=where, otherwise="None")
            object.__setattr__(self, "similarity", beta)
        option_checks.of_kind(self.per_second, bool, "per_second", where=where, remedy="pass True or False")


@dataclass(slots=True)
class Progress:
    """The search history of one task.

    Attributes:
        weight: Number of call sites in the model.
        operations: Floating-point operations of a call.
        tag: Equal for similar tasks, see `similarity_tag`; empty if the task is similar to no other one.
        best: Seconds of the best schedule after each round; inf while no correct one is known.
        counts: Number of candidates in each round.
        cost: Total seconds spent on building and running the candidates.
        exhausted: Whether no candidates are left.
    """

    weight: float
    operations: float = 0.0
    tag: str = ""
    best: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    cost: float = 0.0
    exhausted: bool = False

    def add(self, best: float, count: int, cost: float = 0.0) -> None:
        """Record a finished round."""
        self.best.append(best)
        self.counts.append(count)
        self.cost += cost

    @property
    def speed(self) -> float:
        """Return the operations per second of the best schedule; 0 if none is known."""
        return self.operations / self.best[-1] if self.best else 0.0


def similarity_tag(task: Task) -> str:
    """Return the names of a task's reductions and the rounded logarithm of its operations; empty without reductions.

    Ansor compares the tags that TVM's operators have. They name what the blocks of a PrimFunc name."""
    blocks = [realize.block for realize in realizes(task.module["main"].body)]
    names = [str(block.name_hint) for block in blocks if any(map(_tvm.is_reduction, block.iter_vars))]
    return "_".join([*names, str(int(math.log(task.flops + 1.0, _LOG_BASE)))]) if names else ""


def next_task(
    tasks: Sequence[Progress], options: Scheduling | None = None, among: Collection[int] | None = None
) -> int | None:
    """Return the index of the task for the next round; None if all are exhausted.

    Tasks without a round come first, in their order.

    Args:
        tasks: The history of each task.
        options: Options of the rule; None for the defaults.
        among: Indices of the tasks to choose from; None for all.
    """
    options = options or Scheduling()
    open_ = [i for i, task in enumerate(tasks) if not task.exhausted and (among is None or i in among)]
    if not open_:
        return None
    unserved = [i for i in open_ if not tasks[i].best]
    if unserved:
        return unserved[0]
    similar = [_similar(task, tasks) if options.similarity else [] for task in tasks]
    return max(open_, key=lambda i: expected_gain(tasks[i], options, similar[i]))


def expected_gain(task: Progress, options: Scheduling | None = None, similar: Sequence[Progress] = ()) -> float:
    """Return the seconds that one more second of tuning is expected to save in a call of the model.

    Args:
        task: The history of the task. If its cost is unknown, the gain is per candidate instead.
        options: Options of the rule; None for the defaults.
        similar: The histories of similar tasks.
    """
    options = options or Scheduling()
    latest, candidates = task.best[-1], max(1, sum(task.counts))
    if not math.isfinite(latest):
        return math.inf  # a task without a correct schedule comes first
    slope = 0.0
    if len(task.best) > options.window and math.isfinite(task.best[-1 - options.window]):
        slope = (task.best[-1 - options.window] - latest) / max(1, sum(task.counts[-options.window :]))
    fall = latest / candidates
    fastest = max((other.speed for other in similar), default=0.0)
    if options.similarity and fastest > 0 and not _is_left_behind(task, similar, options.similarity):
        reachable = options.similarity * task.operations / max(fastest, task.speed)
        fall = max(fall, (latest - reachable) * len(task.best) / candidates)
    gain = task.weight * (options.alpha * slope + (1 - options.alpha) * fall)
    return gain / (task.cost / candidates) if options.per_second and task.cost > 0 else gain


def worthwhile(tasks: Sequence[Progress], least: float) -> list[int]:
    """Return the indices of the tasks for which another round is worth it.

    Gains fall from round to round, so it is not if the latest two rounds have saved less than a share of a call's time.
    A task that has had one or two may become twice as fast at most.

    Args:
        tasks: The history of each task.
        least: The least share of a call's time, 0 to 1.
    """
    enough = least * _call(tasks)

    def expected(task: Progress) -> float:
        if not task.best or not math.isfinite(task.best[-1]):
            return math.inf
        return task.weight * (task.best[-3] - task.best[-1] if len(task.best) > 2 else task.best[-1] / 2)

    return [index for index, task in enumerate(tasks) if not task.exhausted and expected(task) >= enough]


def seconds_to_save(share: float, tasks: Sequence[Progress], a_candidate: float, window: int = 3) -> float:
    """Return the seconds of tuning after which a call is expected to take a share less time; inf if nothing is found.

    The search goes on at the pace of the latest rounds of the task in which they have saved most per candidate.

    Args:
        share: Share of a call's time, 0 to 1.
        tasks: The history of each task.
        a_candidate: Seconds of tuning per candidate.
        window: Number of latest rounds.
    """
    paces = [0.0]
    for task in (task for task in tasks if not task.exhausted and len(task.best) > 1):
        first = max(0, len(task.best) - 1 - window)
        fall = task.best[first] - task.best[-1]
        if math.isfinite(fall):
            paces.append(task.weight * fall / max(1, sum(task.counts[first + 1 :])))
    return share * _call(tasks) * a_candidate / max(paces) if max(paces) > 0 else math.inf


def _call(tasks: Sequence[Progress]) -> float:
    """Return the seconds of all calls of tasks with a correct schedule."""
    return math.fsum(task.weight * task.best[-1] for task in tasks if task.best and math.isfinite(task.best[-1]))


def _similar(task: Progress, tasks: Sequence[Progress]) -> list[Progress]:
    """Return the other tasks with the same tag."""
    return [other for other in tasks if task.tag and other.tag == task.tag and other is not task]


def _is_left_behind(task: Progress, similar: Sequence[Progress], beta: float) -> bool:
    """Return whether many more rounds than those of similar tasks have not brought a task near their speed."""
    most = max(len(other.best) for other in similar)
    return len(task.best) > _PATIENCE + most and task.speed < max(other.speed for other in similar) / beta
