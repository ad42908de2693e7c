"""What one candidate's measurement says: a status, seconds with their spread, and the distance from the reference.

Needs neither TVM nor a process: records and reports read these too.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from felixlike.hardware.occupancy import Kernel


class Status(StrEnum):
    """How a candidate ended. Only OK has a time."""

    OK = "ok"
    INVALID = "invalid"
    """TVM refused to schedule it."""
    BUILD_ERROR = "build error"
    """It was scheduled but could not be compiled."""
    RUN_ERROR = "run error"
    """It was compiled but its call raised an error."""
    CRASHED = "crashed"
    """Its process died of a signal or left without an answer."""
    TIMEOUT = "timeout"
    """It was still building or running when its time was up."""
    OUT_OF_MEMORY = "out of memory"
    """It asked for more memory than allowed."""
    WRONG = "wrong"
    """Its answer differs from the reference."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome of one candidate.

    seconds: per call, the lower quartile of the repeats; inf unless OK; nan if OK but only checked, not timed.
    repeats: seconds per call of each timed batch; empty if not timed.  spread: their coefficient of variation (standard
    deviation / mean); nan for fewer than two.  error: max |got − reference| / max |reference|, the worst output; 0 or
    inf for integers; inf where a finite value became NaN; None if not verified.  message: why it failed, short.
    build_seconds, run_seconds: wall time spent on it, s (run: copying the inputs, checking and timing).
    kernels: what the compiler of a GPU's code said of each of its kernels; empty for CPUs, and where it was not built.
    device: the name of the server's device it ran on; empty if that was this machine's."""

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
