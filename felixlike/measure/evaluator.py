"""Time a candidate in micro-batches until their spread is small or the candidate is clearly slower than the best one.

This follows AdaTune §4.1. AdaTune uses the coefficient of variation of the cumulative performance and reports the mean;
the default here is that of the batches themselves, which is larger, and the lower quartile of the batches: disturbances
make calls slower, never faster, so the faster batches say more about the candidate. `Timing` has options for both.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, nan

from felixlike.measure.limits import Timing

_CHEAP, _CHANCES = 0.1, 8
"""Limits before a slow candidate is given up: this share of `Timing.max_seconds`, and this number of batches.

Chosen by hand."""


def evaluate(batch: Callable[[int], float], timing: Timing, *, best: float | None = None) -> tuple[float, ...]:
    """Time batches of calls until `timing` says that there are enough.

    Args:
        batch: batch(n) calls the candidate n times and returns the seconds per call. The candidate must have been
            called before.
        timing: When to stop.
        best: Seconds per call of the best candidate so far; None if there is none.

    Returns:
        Seconds per call of each batch, at least one.
    """
    give_up_seconds = None if best is None else best * timing.slow_factor
    first = batch(1)
    calls = calls_of_a_batch([first], timing)
    varies = cumulative_variation if timing.variation == "cumulative" else variation
    # A call that fills a batch by itself is the first batch; otherwise it only gives the number of calls of a batch.
    repeats = [first] if calls == 1 else [batch(calls)]
    spent = first if calls == 1 else first + repeats[0] * calls
    if give_up_seconds is not None:
        # One slow batch is not enough to give up: another process may have the core for some milliseconds.
        while min(repeats) > give_up_seconds and len(repeats) < _CHANCES and spent <= timing.max_seconds * _CHEAP:
            repeats.append(batch(calls))
            spent += repeats[-1] * calls
        if min(repeats) > give_up_seconds:
            return tuple(repeats)
    while len(repeats) < timing.max_batches and spent < timing.max_seconds:
        if len(repeats) >= timing.min_batches and varies(repeats) < timing.spread:
            break
        repeats.append(batch(calls))
        spent += repeats[-1] * calls
    return tuple(repeats)


def lower_quartile(repeats: Sequence[float]) -> float:
    """Return the interpolated lower quartile of at least one repeat."""
    if len(repeats) == 1:
        return repeats[0]
    return statistics.quantiles(repeats, n=4, method="inclusive")[0]


def seconds_of(repeats: Sequence[float], timing: Timing) -> float:
    """Return the seconds per call that count, of at least one repeat: see `Timing.statistic`."""
    return statistics.fmean(repeats) if timing.statistic == "mean" else lower_quartile(repeats)


def better(best: float | None, repeats: Sequence[float], timing: Timing) -> float | None:
    """Return the best seconds per call after one more candidate; `repeats` may be empty."""
    if not repeats:
        return best
    seconds = seconds_of(repeats, timing)
    return seconds if best is None else min(best, seconds)


def calls_of_a_batch(repeats: Sequence[float], timing: Timing) -> int:
    """Return the number of calls of a batch, by default as many as fill it, computed from the fastest repeat."""
    return timing.batch_calls or ceil(timing.batch_seconds / max(min(repeats), 1e-9))


def cumulative_variation(repeats: Sequence[float]) -> float:
    """Return the coefficient of variation of the cumulative performance; nan for fewer than two batches.

    The cumulative performance after batch i is i ÷ the time of the first i batches, up to a constant (AdaTune §4.1)."""
    return variation([number / max(elapsed, 1e-9) for number, elapsed in enumerate(accumulate(repeats), start=1)])


def variation(repeats: list[float] | tuple[float, ...]) -> float:
    """Return the coefficient of variation, sample standard deviation / mean; nan for fewer than two values."""
    if len(repeats) < 2:
        return nan
    return statistics.stdev(repeats) / statistics.fmean(repeats)
