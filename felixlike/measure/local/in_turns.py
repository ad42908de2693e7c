"""Time calls of this process in turns, so that disturbances affect all of them alike.

Input: callables. Output: seconds per call of each turn. Use it for code that has been compiled into this process;
candidates of a search run in processes of their own (`interleaved_timing`).
"""

import time
from collections.abc import Callable, Sequence

from felixlike.measure.evaluator import calls_of_a_batch
from felixlike.measure.limits import Timing
from felixlike.measure.local.machine_lock import alone_on_machine


def in_turns(calls: Sequence[Callable[[], object]], timing: Timing) -> list[tuple[float, ...]]:
    """Time calls in turns while no other process measures.

    Args:
        calls: The calls to compare.
        timing: `turns` batches of each call are timed, each at least `batch_seconds` long.

    Returns:
        Seconds per call of each batch, for each call.
    """
    with alone_on_machine():
        batches = []
        for call in calls:
            call()  # the first call may load code and touch memory
            batches.append((call, calls_of_a_batch([_seconds(call, 1)], timing)))
        repeats: list[list[float]] = [[] for _ in calls]
        for _ in range(timing.turns):
            for (call, count), times in zip(batches, repeats, strict=True):
                times.append(_seconds(call, count))
        return [tuple(times) for times in repeats]


def _seconds(call: Callable[[], object], count: int) -> float:
    """Return the seconds of a call, averaged over `count` calls."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count
