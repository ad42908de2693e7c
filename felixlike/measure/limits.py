"""Hold the defaults of measuring: time and memory limits, the error tolerance, and when timing stops."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from types import MappingProxyType
from typing import Any

from felixlike._util import option_checks
from felixlike.hardware.probe import memory_bytes

_MEMORY = 4 * 2**30
"""Default memory limit of a candidate, bytes; chosen by hand."""


_WORDS = {"variation": ("batches", "cumulative"), "statistic": ("lower quartile", "mean")}
"""Allowed values of the options of `Timing` that are words."""


def _check(options: Any) -> None:
    """Convert every field to its Python type; raise InvalidOption unless it is greater than 0 (`turns`: at least 0)."""
    where = type(options).__name__
    for option in fields(options):
        name, value = option.name, getattr(options, option.name)
        if name in ("tolerance", "batch_calls") and value is None:
            continue
        if name in _WORDS:
            option_checks.one_of(value, name, _WORDS[name], what=f"a {name}")
            continue
        if option.type is Timing:
            option_checks.of_kind(value, Timing, name, where=where, remedy="pass a Timing")
        elif option.type in (int, int | None):
            least = 0 if name == "turns" else 1
            object.__setattr__(options, name, option_checks.whole(value, name, least=least, where=where))
        else:
            object.__setattr__(options, name, option_checks.real(value, name, positive=True, finite=False, where=where))


@dataclass(frozen=True, slots=True)
class Timing:
    """Decide when a candidate has been timed enough (AdaTune §4.1), and which of its times counts.

    `EVALUATORS` has AdaTune's own rules.

    Attributes:
        batch_seconds: Time that the calls of one micro-batch fill, s.
        spread: Stop once the coefficient of variation is below this value.
        min_batches: Number of batches before `spread` may stop the timing.
        max_batches: Largest number of batches.
        max_seconds: Stop after this total time, s.
        slow_factor: A candidate is given up early if its fastest of up to 8 batches, timed for at most a tenth of
            `max_seconds`, takes more than this factor times the best candidate's time.
        turns: Number of extra rounds of interleaved timing for the best candidates of a batch; 0 for none. On a shared
            machine, the speed changes more from one minute to the next than good candidates differ.
        close: Candidates within this factor of the fastest one of their batch take part in interleaved timing.
        batch_calls: Number of calls of a micro-batch, instead of as many as fill `batch_seconds`; None for these.
        variation: What `spread` is compared with: the coefficient of variation of the "batches", or as in AdaTune of
            the "cumulative" performance, that of all calls up to the end of each batch. The latter stops earlier.
        statistic: What counts as a candidate's seconds: the "lower quartile" of the batches, since disturbances only
            make calls slower, or as in AdaTune their "mean".

    Raises:
        InvalidOption: A value is out of range.
    """

    batch_seconds: float = 5e-4
    spread: float = 0.1
    min_batches: int = 3
    max_batches: int = 20
    max_seconds: float = 0.2
    slow_factor: float = 3.0
    turns: int = 5
    close: float = 1.3
    batch_calls: int | None = None
    variation: str = "batches"
    statistic: str = "lower quartile"

    def __post_init__(self) -> None:
        _check(self)


_ADAPTIVE = Timing(
    batch_calls=50,
    min_batches=2,
    max_batches=10,
    spread=0.1,
    max_seconds=5.0,
    slow_factor=inf,
    turns=0,
    variation="cumulative",
    statistic="mean",
)

EVALUATORS: Mapping[str, Timing] = MappingProxyType(
    {"adaptive": _ADAPTIVE, "deterministic": replace(_ADAPTIVE, min_batches=10)}
)
"""AdaTune's evaluators (§5.1): up to n = 500 calls in micro-batches of B = 50 until their cumulative performance varies
by less than 10 %, and all 500 calls. Both stop after 5 s, half of a candidate's default time limit. A
batch of calls longer than 0.2 s exceeds that limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limit the resources of one candidate and the error of its output.

    Attributes:
        build_seconds: Wall time for building, s.
        slow_build: A build is given up if it takes more than this factor times the median of those of its stream, and
            more than half a second; inf for never.
        run_seconds: Wall time for running, checking and timing, s.
        reference_seconds: Wall time for the unscheduled float64 reference, s.
        memory_bytes: Memory above that of a fresh process, bytes. Four times the task's own buffers are added to it.
            The default is 4 GiB, or half the machine's memory if that is less.
        tolerance: Largest error of a float32 output relative to its largest value. None derives it from the length of
            the longest sum (`check.answer_check.tolerance`).
        timing: When a candidate has been timed enough.
    """

    build_seconds: float = 10.0
    slow_build: float = 5.0
    run_seconds: float = 10.0
    reference_seconds: float = 120.0
    memory_bytes: int = field(default_factory=lambda: min(_MEMORY, memory_bytes() // 2))
    tolerance: float | None = None
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        _check(self)
