"""What a candidate may use up, how near the reference it must come, how long it is timed: all defaults of this room."""

from dataclasses import dataclass, field, fields
from typing import Any

from felixlike.errors import InvalidOption
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
        _all_positive(self)


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
        _all_positive(self)


def _all_positive(options: Any) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        if isinstance(value, Timing) or (option.name == "tolerance" and value is None):
            continue
        none_will_do = option.name == "turns" and value == 0
        if not isinstance(value, int | float) or not (value > 0 or none_will_do):
            raise InvalidOption(
                f"{option.name} is {value!r}",
                where=type(options).__name__,
                remedy="give a number greater than zero",
            )
