"""What a candidate may use up, how near the reference it must come, how long it is timed: all defaults of this room."""

from dataclasses import dataclass, field, fields
from typing import Any

from felixlike._util import option_checks
from felixlike.hardware.probe import memory_bytes

_MEMORY = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Timing:
    """When a candidate has been timed enough (AdaTune §4.1).

    batch_seconds: a micro-batch has as many calls as fill this time, s.  spread: stop once the batches' coefficient of
    variation is below.  min_batches: not before so many.  max_batches, max_seconds: stop in any case.
    slow_factor: a candidate whose first batch takes this many times the best one's time is not timed further.
    turns, close: how often those of a few candidates that come within this factor of the best one are timed again, in
    turns: on a machine that others use too, one minute differs from the next by more than good candidates differ."""

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
    """What one candidate may take.

    build_seconds, run_seconds: wall time for building; for running, checking and timing, s.  reference_seconds: the
    same for the float64 reference, which is unscheduled, s.  memory_bytes: above what a fresh process uses (4 GiB, or
    half the machine's memory if that is less); four times the task's own buffers come on top.
    tolerance: largest error of a float32 answer relative to its largest value; None: from the length of the longest
    sum (`verify.tolerance`)."""

    build_seconds: float = 10.0
    run_seconds: float = 10.0
    reference_seconds: float = 120.0
    memory_bytes: int = field(default_factory=lambda: min(_MEMORY, memory_bytes() // 2))
    tolerance: float | None = None
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        _check(self)


def _check(given: Any) -> None:
    """Every field has a value of its type, greater than 0 (turns: or 0), in Python's own type. Raises InvalidOption."""
    where = type(given).__name__
    for option in fields(given):
        name, value = option.name, getattr(given, option.name)
        if name == "tolerance" and value is None:
            continue
        if option.type is Timing:
            option_checks.of_kind(value, Timing, name, where=where, remedy="give a Timing")
        elif option.type is int:
            least = 0 if name == "turns" else 1
            object.__setattr__(given, name, option_checks.whole(value, name, least=least, where=where))
        else:
            object.__setattr__(given, name, option_checks.real(value, name, positive=True, finite=False, where=where))
