"""Which task to work on next: every task once, then where a second is expected to save most.

In: for each task its weight, its best latency after each round and what its rounds cost. Out: the index of the task.
Ansor's gradient (Zheng et al. 2020, §6; MetaSchedule's task scheduler too), for a candidate rather than a round, since
rounds differ in size, and for a second rather than a candidate, since candidates differ in cost:

    gain = weight · ( α · recent fall per candidate + (1 − α) · best / candidates ) / seconds per candidate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_ALPHA = 0.2
_WINDOW = 3


@dataclass(slots=True)
class Progress:
    """One task's history.  weight: call sites.  best: seconds of the best schedule after each round (inf while none is
    right).  counts: candidates of each round.  cost: seconds that building and running them took, all together.
    exhausted: nothing is left to try."""

    weight: float
    best: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    cost: float = 0.0
    exhausted: bool = False

    def add(self, best: float, count: int, cost: float = 0.0) -> None:
        """A round is over."""
        self.best.append(best)
        self.counts.append(count)
        self.cost += cost


def next_task(tasks: Sequence[Progress]) -> int | None:
    """The task to work on, or None where all are exhausted. Tasks that had no round come first, in their order."""
    open_ = [i for i, task in enumerate(tasks) if not task.exhausted]
    if not open_:
        return None
    unserved = [i for i in open_ if not tasks[i].best]
    if unserved:
        return unserved[0]
    return max(open_, key=lambda i: expected_gain(tasks[i]))


def expected_gain(task: Progress) -> float:
    """Seconds of the whole model that one more second on the task is expected to save; where no costs are known, one
    more candidate."""
    latest, candidates = task.best[-1], max(1, sum(task.counts))
    if not math.isfinite(latest):
        return math.inf  # no right schedule yet: nothing is more urgent
    slope = 0.0
    if len(task.best) > _WINDOW and math.isfinite(task.best[-1 - _WINDOW]):
        slope = (task.best[-1 - _WINDOW] - latest) / max(1, sum(task.counts[-_WINDOW:]))
    gain = task.weight * (_ALPHA * slope + (1 - _ALPHA) * latest / candidates)
    return gain / (task.cost / candidates) if task.cost > 0 else gain
