"""How a candidate's last message becomes its Measurement."""

from math import inf, nan

from felixlike.errors import InvalidSchedule
from felixlike.hardware.occupancy import Kernel
from felixlike.measure.evaluator import lower_quartile, variation
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message

_MESSAGE_CHARACTERS = 300


def measurement(answer: Message, *, build_seconds: float, run_seconds: float) -> Measurement:
    """answer: status, and as far as there are any: repeats, error, message, device, kernels."""
    repeats = tuple(answer.get("repeats", ()))
    seconds = inf
    if answer["status"] is Status.OK:
        seconds = lower_quartile(repeats) if repeats else nan
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
    """The Measurement of a candidate that has no module."""
    message = " ".join(str(refusal).split())[:_MESSAGE_CHARACTERS]
    return Measurement(Status.INVALID, message=message, build_seconds=seconds)
