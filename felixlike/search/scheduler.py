"""Which task to work on next: every task once, then where a round is expected to save most.

In: for each task its weight and its best latency after each round. Out: the index of the task. Ansor's gradient (also
MetaSchedule's task scheduler): gain = α · recent slope + (1 − α) · best / rounds, times the task's weight.
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
    right).  exhausted: nothing is left to try."""

    weight: float
    best: list[float] = field(default_factory=list)
    exhausted: bool = False


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
    """Seconds of the whole model that one more round on the task is expected to save."""
    history = task.best
    latest = history[-1]
    if not math.isfinite(latest):
        return math.inf  # no right schedule yet: nothing is more urgent
    rounds = len(history)
    slope = 0.0
    if rounds > _WINDOW and math.isfinite(history[-1 - _WINDOW]):
        slope = (history[-1 - _WINDOW] - latest) / _WINDOW
    return task.weight * (_ALPHA * slope + (1 - _ALPHA) * latest / rounds)
