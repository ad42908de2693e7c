"""Timing several sides against each other on one noisy machine.

In: by name, how to time some calls of a side. Out: medians and means with spread. Sides are interleaved (A B C A B
C …), and had better be in processes of their own (`processes.py`): two thread pools in one disturb each other.
"""

from __future__ import annotations

import math
import statistics
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Timer = Callable[[int], "array[float]"]
"""Makes an untimed call, then so many; seconds of each."""


@dataclass(frozen=True, slots=True)
class Timed:
    """seconds: median of a call.  mean: of all.  low, high: quartiles.  calls: how many were timed.  least, most: the
    quickest call, and what nine of ten stay below."""

    seconds: float
    mean: float
    low: float
    high: float
    calls: int
    least: float = math.nan
    most: float = math.nan


def timer(run: Callable[[], object]) -> Timer:
    """Times calls in this process."""

    def times(calls: int) -> array[float]:
        run()  # others have used the caches meanwhile
        found = array("d", bytes(8 * calls))
        before = time.perf_counter()
        for i in range(calls):
            run()
            after = time.perf_counter()
            found[i] = after - before
            before = after
        return found

    return times


def interleaved(sides: Mapping[str, Timer], *, seconds_a_side: float = 3.0, slot: float = 0.1) -> dict[str, Timed]:
    """Time every side for about `seconds_a_side`, in turns of about `slot` seconds, each side at least three times."""
    calls: dict[str, int] = {}
    for name, times in sides.items():
        times(0)  # compile, allocate, warm up
        calls[name] = max(1, round(slot / max(min(times(5)), 1e-7)))
    found: dict[str, array[float]] = {name: array("d") for name in sides}
    turns = max(3, round(seconds_a_side / slot))
    for turn in range(turns):
        for name, times in sides.items():
            if turn < 3 or sum(found[name]) <= seconds_a_side:
                found[name].extend(times(calls[name]))
    return {name: summary(seconds) for name, seconds in found.items()}


def summary(found: array[float]) -> Timed:
    """Of the seconds of some calls, at least one."""
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else (found[0],) * 3
    most = statistics.quantiles(found, n=10)[-1] if len(found) > 1 else found[0]
    return Timed(middle, statistics.fmean(found), low, high, len(found), min(found), most)
