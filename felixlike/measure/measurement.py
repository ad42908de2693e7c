"""Define a Measurement: a candidate's status, its seconds per call with their spread, and its error.

This module needs neither TVM nor a process of its own, since records and reports use it too.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from felixlike.hardware.occupancy import Kernel


class Status(StrEnum):
    """Outcome of a candidate. Only OK has a time."""

    OK = "ok"
    INVALID = "invalid"
    """TVM refused to schedule it."""
    BUILD_ERROR = "build error"
    """It was scheduled but could not be compiled."""
    RUN_ERROR = "run error"
    """It was compiled but its call raised an error."""
    CRASHED = "crashed"
    """Its process died of a signal or exited without an answer."""
    TIMEOUT = "timeout"
    """It was still building or running at its time limit."""
    OUT_OF_MEMORY = "out of memory"
    """It exceeded its memory limit."""
    WRONG = "wrong"
    """Its output differs from the reference by more than the tolerance."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Outcome of one candidate.

    Attributes:
        status: How the candidate ended.
        seconds: Seconds per call, by default the lower quartile of `repeats` (`Timing.statistic`). inf unless the
            status is OK; nan if the candidate was checked but not timed.
        repeats: Seconds per call of each timed batch; empty if the candidate was not timed.
        spread: Coefficient of variation of `repeats` (standard deviation / mean); nan for fewer than two.
        error: max |got − reference| / max |reference| of the worst output; 0 or inf for integers; inf if a finite value
            became NaN; None if the output was not verified.
        message: Short reason of a failure.
        build_seconds: Wall time of the build, s.
        run_seconds: Wall time of copying the inputs, checking and timing, s.
        device: Name of the server's device that ran the candidate; empty for this machine.
        kernels: The GPU compiler's report of each kernel; empty for CPUs and for candidates that were not built.
    """

    status: Status
    seconds: float = math.inf
    repeats: tuple[float, ...] = ()
    spread: float = math.nan
    error: float | None = None
    message: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    device: str = ""
    kernels: tuple[Kernel, ...] = ()
