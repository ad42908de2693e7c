"""Convert a candidate's last message into its Measurement."""

from math import inf, isfinite, nan

from felixlike._util.wording import shown
from felixlike.errors import InvalidSchedule
from felixlike.hardware.occupancy import Kernel
from felixlike.measure.evaluator import seconds_of, variation
from felixlike.measure.limits import Timing
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message

_MESSAGE_CHARACTERS = 300
"""Largest length of `Measurement.message`, characters; chosen by hand."""


def measurement(
    answer: Message, *, build_seconds: float, run_seconds: float, timing: Timing | None = None
) -> Measurement:
    """Return the Measurement of an answer. Times that no clock measures make it a RUN_ERROR.

    Args:
        answer: The candidate's message: its status and, optionally, repeats, error, message, device and kernels.
        build_seconds: Wall time of the build, s.
        run_seconds: Wall time of the run, s.
        timing: How the candidate was timed; None for the defaults of `Timing`.
    """
    repeats = tuple(answer.get("repeats", ()))
    if not all(isinstance(repeat, int | float) and isfinite(repeat) and repeat > 0 for repeat in repeats):
        # A server may answer anything, and a negative time would be the best one for ever.
        message = f"its times are impossible: {shown(list(repeats))}"
        answer, repeats = {**answer, "status": Status.RUN_ERROR, "message": message}, ()
    seconds = inf
    if answer["status"] is Status.OK:
        seconds = seconds_of(repeats, timing or Timing()) if repeats else nan
    return Measurement(
        status=answer["status"],
        seconds=seconds,
        repeats=repeats,
        spread=variation(repeats),
        error=answer.get("error"),
        message=answer.get("message", ""),
        build_seconds=build_seconds,
        run_seconds=run_seconds,
        device=answer.get("device", ""),
        kernels=tuple(map(Kernel.of, answer.get("kernels", ()))),
    )


def refused(refusal: InvalidSchedule, seconds: float) -> Measurement:
    """Return the Measurement of a candidate whose schedule TVM rejects; `seconds` were spent on it."""
    message = " ".join(str(refusal).split())[:_MESSAGE_CHARACTERS]
    return Measurement(Status.INVALID, message=message, build_seconds=seconds)
