"""How long to time a candidate: micro-batches until their spread is small, or it is clear that it will not win.

AdaTune §4.1. There the coefficient of variation is that of the running mean; here it is that of the batches themselves,
which never stops earlier. What counts of the batches is their lower quartile: whatever else a machine does makes calls
slower, never faster, so the faster batches say more about the candidate.
"""

import statistics
from collections.abc import Callable, Sequence
from math import ceil, nan

from felixlike.measure.limits import Timing

_CHEAP, _CHANCES = 0.1, 8
"""Batches are repeated up to this share of the time for all, and so often, before a candidate is given up."""


def evaluate(batch: Callable[[int], float], timing: Timing, *, best: float | None = None) -> tuple[float, ...]:
    """Seconds per call of each batch, at least one.

    batch(n): calls the candidate n times, returns seconds per call; the candidate has been called before.
    best: seconds per call of the best candidate so far, None if there is none."""
    hopeless = None if best is None else best * timing.slow_factor
    first = batch(1)
    number = calls_of_a_batch([first], timing)
    # A call that fills a batch by itself is the first batch; else it only tells how many fill one.
    repeats = [first] if number == 1 else [batch(number)]
    spent = first + sum(repeats[1:]) * number
    if hopeless is not None:
        # A disturbance is not held against it: another process may have the core for some milliseconds.
        while min(repeats) > hopeless and len(repeats) < _CHANCES and spent <= timing.max_seconds * _CHEAP:
            repeats.append(batch(number))
            spent += repeats[-1] * number
        if min(repeats) > hopeless:
            return tuple(repeats)
    while len(repeats) < timing.max_batches and spent < timing.max_seconds:
        if len(repeats) >= timing.min_batches and variation(repeats) < timing.spread:
            break
        repeats.append(batch(number))
        spent += repeats[-1] * number
    return tuple(repeats)


def lower_quartile(repeats: Sequence[float]) -> float:
    """The value that a quarter of the repeats are below, interpolated; at least one repeat."""
    if len(repeats) == 1:
        return repeats[0]
    return statistics.quantiles(repeats, n=4, method="inclusive")[0]


def better(best: float | None, repeats: Sequence[float]) -> float | None:
    """The best seconds per call after the repeats of one more candidate, which may have none."""
    if not repeats:
        return best
    seconds = lower_quartile(repeats)
    return seconds if best is None else min(best, seconds)


def calls_of_a_batch(repeats: Sequence[float], timing: Timing) -> int:
    """How many calls fill a batch, by those timed so far."""
    return ceil(timing.batch_seconds / max(min(repeats), 1e-9))


def variation(repeats: list[float] | tuple[float, ...]) -> float:
    """Coefficient of variation: sample standard deviation / mean; nan for fewer than two values."""
    if len(repeats) < 2:
        return nan
    return statistics.stdev(repeats) / statistics.fmean(repeats)
