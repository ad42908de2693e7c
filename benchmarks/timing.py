"""Timing several callables against each other on one noisy machine.

In: callables by name. Out: medians with spread. Sides are interleaved (A B C A B C …); between them every thread pool
gets time to fall asleep, because one that still spins takes a core from the next; PyTorch's threads are pinned,
because otherwise two of them sometimes share a core. Call `pin_threads` before torch is imported.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_ASLEEP = 0.03
"""Seconds after which OpenMP's and TVM's workers no longer spin."""


def pin_threads() -> None:
    """One thread of PyTorch's on each core. The user's own settings win."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_PROC_BIND", "true")
    os.environ.setdefault("OMP_PLACES", ",".join(f"{{{core}}}" for core in cores))


@dataclass(frozen=True, slots=True)
class Timed:
    """seconds: median of a call.  low, high: quartiles.  calls: how many were timed."""

    seconds: float
    low: float
    high: float
    calls: int


def interleaved(
    sides: Mapping[str, Callable[[], object]], *, seconds_a_side: float = 3.0, slot: float = 0.1
) -> dict[str, Timed]:
    """Time every side for about `seconds_a_side`, in turns of about `slot` seconds, each side at least three times."""
    calls: dict[str, int] = {}
    for name, run in sides.items():
        run()  # compile, allocate, warm up
        calls[name] = max(1, round(slot / max(min(_seconds(run) for _ in range(5)), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    turns = max(3, round(seconds_a_side / slot))
    for turn in range(turns):
        for name, run in sides.items():
            if turn >= 3 and sum(times[name]) * calls[name] > seconds_a_side:
                continue
            time.sleep(_ASLEEP)
            run()
            started = time.perf_counter()
            for _ in range(calls[name]):
                run()
            times[name].append((time.perf_counter() - started) / calls[name])
    return {name: _summary(found, calls[name]) for name, found in times.items()}


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _summary(found: list[float], calls: int) -> Timed:
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else (found[0],) * 3
    return Timed(middle, low, high, len(found) * calls)
