"""Hold the defaults of measuring: time and memory limits, the error tolerance, and when timing stops."""

from dataclasses import dataclass, field, fields
from typing import Any

from felixlike._util import option_checks
from felixlike.hardware.probe import memory_bytes

_MEMORY = 4 * 2**30
"""Default memory limit of a candidate, bytes; chosen by hand."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Decide when a candidate has been timed enough (AdaTune §4.1).

    Attributes:
        batch_seconds: Time that the calls of one micro-batch fill, s.
        spread: Stop once the coefficient of variation of the batches is below this value.
        min_batches: Number of batches before `spread` may stop the timing.
        max_batches: Largest number of batches.
        max_seconds: Stop after this total time, s.
        slow_factor: A candidate is given up early if its fastest of up to 8 batches, timed for at most a tenth of
            `max_seconds`, takes more than this factor times the best candidate's time.
        turns: Number of extra rounds of interleaved timing for the best candidates of a batch; 0 for none. On a shared
            machine, the speed changes more from one minute to the next than good candidates differ.
        close: Candidates within this factor of the fastest one of their batch take part in interleaved timing.
    """

    batch_seconds: float = 5e-4
    spread: float = 0.1
    min_batches: int = 3
    max_batches: int = 20
    max_seconds: float = 0.2
    slow_factor: float = 3.0
    turns: int = 5
    close: float = 1.3

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limit the resources of one candidate and the error of its output.

    Attributes:
        build_seconds: Wall time for building, s.
        run_seconds: Wall time for running, checking and timing, s.
        reference_seconds: Wall time for the unscheduled float64 reference, s.
        memory_bytes: Memory above that of a fresh process, bytes. Four times the task's own buffers are added to it.
            The default is 4 GiB, or half the machine's memory if that is less.
        tolerance: Largest error of a float32 output relative to its largest value. None derives it from the length of
            the longest sum (`check.answer_check.tolerance`).
        timing: When a candidate has been timed enough.
    """

    build_seconds: float = 10.0
    run_seconds: float = 10.0
    reference_seconds: float = 120.0
    memory_bytes: int = field(default_factory=lambda: min(_MEMORY, memory_bytes() // 2))
    tolerance: float | None = None
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        _check(self)


def _check(options: Any) -> None:
    """Convert every field to its Python type; raise InvalidOption unless it is greater than 0 (`turns`: at least 0)."""
    where = type(options).__name__
    for option in fields(options):
        name, value = option.name, getattr(options, option.name)
        if name == "tolerance" and value is None:
            continue
        if option.type is Timing:
            option_checks.of_kind(value, Timing, name, where=where, remedy="pass a Timing")
        elif option.type is int:
            least = 0 if name == "turns" else 1
            object.__setattr__(options, name, option_checks.whole(value, name, least=least, where=where))
        else:
            object.__setattr__(options, name, option_checks.real(value, name, positive=True, finite=False, where=where))
