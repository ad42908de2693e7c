"""Choose the task of the next round: every task once, then the one with the largest expected gain per second.

Inputs: each task's weight, its best latency after each round and the cost of its rounds. Output: the index of a task.
The rule is Ansor's gradient (Zheng et al. 2020, §6), which MetaSchedule's task scheduler uses too. It is computed per
candidate instead of per round, since rounds differ in size, and per second, since candidates differ in cost:

    gain = weight · ( α · recent fall per candidate + (1 − α) · best / candidates ) / seconds per candidate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_ALPHA = 0.2
"""Weight of the recent slope in the expected gain: the default of Ansor and MetaSchedule."""

_WINDOW = 3
"""Number of rounds over which the recent slope is taken: the default of Ansor and MetaSchedule."""


@dataclass(slots=True)
class Progress:
    """The search history of one task.

    Attributes:
        weight: Number of call sites in the model.
        best: Seconds of the best schedule after each round; inf while no correct one is known.
        counts: Number of candidates in each round.
        cost: Total seconds spent on building and running the candidates.
        exhausted: Whether no candidates are left.
    """

    weight: float
    best: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    cost: float = 0.0
    exhausted: bool = False

    def add(self, best: float, count: int, cost: float = 0.0) -> None:
        """Record a finished round."""
        self.best.append(best)
        self.counts.append(count)
        self.cost += cost


def next_task(tasks: Sequence[Progress]) -> int | None:
    """Return the index of the task for the next round; None if all are exhausted.

    Tasks without a round come first, in their order."""
    open_ = [i for i, task in enumerate(tasks) if not task.exhausted]
    if not open_:
        return None
    unserved = [i for i in open_ if not tasks[i].best]
    if unserved:
        return unserved[0]
    return max(open_, key=lambda i: expected_gain(tasks[i]))


def expected_gain(task: Progress) -> float:
    """Return the seconds that one more second of tuning is expected to save in a call of the model.

    If the task's cost is unknown, the gain is per candidate instead."""
    latest, candidates = task.best[-1], max(1, sum(task.counts))
    if not math.isfinite(latest):
        return math.inf  # a task without a correct schedule comes first
    slope = 0.0
    if len(task.best) > _WINDOW and math.isfinite(task.best[-1 - _WINDOW]):
        slope = (task.best[-1 - _WINDOW] - latest) / max(1, sum(task.counts[-_WINDOW:]))
    gain = task.weight * (_ALPHA * slope + (1 - _ALPHA) * latest / candidates)
    return gain / (task.cost / candidates) if task.cost > 0 else gain
