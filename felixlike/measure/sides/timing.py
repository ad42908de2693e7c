"""Time several sides alternately on a noisy machine.

Input: a timer per side, by name. Outputs: medians and means with spread. Sides are interleaved (A B C A B C …). They
should run in separate processes (`processes.py`), since two thread pools in one process disturb each other.
"""

from __future__ import annotations

import math
import statistics
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Timer = Callable[[int], "array[float]"]
"""Makes one untimed call, then the given number of calls. Returns the seconds of each."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Statistics of a side's calls.

    Attributes:
        seconds: Median seconds per call.
        mean: Mean seconds per call.
        low: First quartile.
        high: Third quartile.
        calls: Number of timed calls.
        least: Fastest call.
        most: 90th percentile.
    """

    seconds: float
    mean: float
    low: float
    high: float
    calls: int
    least: float = math.nan
    most: float = math.nan


def timer(run: Callable[[], object]) -> Timer:
    """Return a timer of calls in this process."""

    def times(calls: int) -> array[float]:
        run()  # other sides have replaced this side's data in the caches
        return consecutive(run, calls)

    return times


def consecutive(run: Callable[[], object], calls: int) -> array[float]:
    """Return the seconds of each of consecutive calls in this process."""
    latencies = array("d", bytes(8 * calls))
    before = time.perf_counter()
    for i in range(calls):
        run()
        after = time.perf_counter()
        latencies[i] = after - before
        before = after
    return latencies


def interleaved(sides: Mapping[str, Timer], *, seconds_a_side: float = 3.0, slot: float = 0.1) -> dict[str, Timed]:
    """Time sides alternately.

    Args:
        sides: Timers by name.
        seconds_a_side: Approximate seconds of timing per side.
        slot: Approximate seconds per turn. Each side has at least three turns.
    """
    calls: dict[str, int] = {}
    for name, times in sides.items():
        times(0)  # compile, allocate, warm up
        calls[name] = max(1, round(slot / max(min(times(5)), 1e-7)))
    latencies: dict[str, array[float]] = {name: array("d") for name in sides}
    turns = max(3, round(seconds_a_side / slot))
    for turn in range(turns):
        for name, times in sides.items():
            if turn < 3 or sum(latencies[name]) <= seconds_a_side:
                latencies[name].extend(times(calls[name]))
    return {name: summary(seconds) for name, seconds in latencies.items()}


def summary(latencies: array[float]) -> Timed:
    """Return the statistics of the seconds of at least one call."""
    low, middle, high = statistics.quantiles(latencies, n=4) if len(latencies) > 1 else (latencies[0],) * 3
    most = statistics.quantiles(latencies, n=10)[-1] if len(latencies) > 1 else latencies[0]
    return Timed(middle, statistics.fmean(latencies), low, high, len(latencies), min(latencies), most)
