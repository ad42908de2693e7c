"""Time a candidate in micro-batches until their spread is small or the candidate is clearly slower than the best one.

This follows AdaTune §4.1. AdaTune uses the coefficient of variation of the running mean; this module uses that of the
batches themselves, which never stops earlier. A candidate's time is the lower quartile of its batches: disturbances
make calls slower, never faster, so the faster batches say more about the candidate.
"""

import statistics
from collections.abc import Callable, Sequence
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
    # A call that fills a batch by itself is the first batch; otherwise it only gives the number of calls of a batch.
    repeats = [first] if calls == 1 else [batch(calls)]
    spent = first + sum(repeats[1:]) * calls
    if give_up_seconds is not None:
        # One slow batch is not enough to give up: another process may have the core for some milliseconds.
        while min(repeats) > give_up_seconds and len(repeats) < _CHANCES and spent <= timing.max_seconds * _CHEAP:
            repeats.append(batch(calls))
            spent += repeats[-1] * calls
        if min(repeats) > give_up_seconds:
            return tuple(repeats)
    while len(repeats) < timing.max_batches and spent < timing.max_seconds:
        if len(repeats) >= timing.min_batches and variation(repeats) < timing.spread:
            break
        repeats.append(batch(calls))
        spent += repeats[-1] * calls
    return tuple(repeats)


def lower_quartile(repeats: Sequence[float]) -> float:
    """Return the interpolated lower quartile of at least one repeat."""
    if len(repeats) == 1:
        return repeats[0]
    return statistics.quantiles(repeats, n=4, method="inclusive")[0]


def better(best: float | None, repeats: Sequence[float]) -> float | None:
    """Return the best seconds per call after one more candidate; `repeats` may be empty."""
    if not repeats:
        return best
    seconds = lower_quartile(repeats)
    return seconds if best is None else min(best, seconds)


def calls_of_a_batch(repeats: Sequence[float], timing: Timing) -> int:
    """Return the number of calls that fill a batch, computed from the fastest of the repeats."""
    return ceil(timing.batch_seconds / max(min(repeats), 1e-9))


def variation(repeats: list[float] | tuple[float, ...]) -> float:
    """Return the coefficient of variation, sample standard deviation / mean; nan for fewer than two values."""
    if len(repeats) < 2:
        return nan
    return statistics.stdev(repeats) / statistics.fmean(repeats)
