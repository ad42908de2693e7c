"""Call, check and time a built candidate, on this machine or on a server.

The input is a library and the pool's run request. The output is the answer, and a stopwatch for further timing. This
follows MetaSchedule's default_run_evaluator (tvm/s_tir/meta_schedule).
"""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from felixlike.hardware.faults import fault_of
from felixlike.measure.check.answer_check import poison, relative_error
from felixlike.measure.check.guarded_buffers import Buffers
from felixlike.measure.evaluator import evaluate
from felixlike.measure.limits import Timing
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message

_MESSAGE_CHARACTERS = 300
"""Largest length of an answer's message, characters; chosen by hand."""

_TURN = 2
"""Batches of a turn of interleaved timing; chosen by hand."""

_ATTEMPTS, _SHORT = 4, 0.05
"""Largest number of times that a disturbed batch is timed, and seconds of a batch that is too long for a disturbance to
matter, and in which there nearly always is one. Chosen by hand."""

Parameters = Sequence[tuple[Sequence[int], str]]
"""The shape and the dtype of each parameter of a function."""


@dataclass(frozen=True, slots=True)
class Built:
    """Library of a candidate.

    Attributes:
        library: The functions "main" and, for each constant that is packed before the first call, "pack0", "pack1", …
        packed: (parameter, shape, dtype) of each packed constant.
        parameters: (shape, dtype) of each parameter before packing, if "main" does not check its arguments; else None.
        name: Name of "main" in the library.
        packer: Library with "pack0", …; None if they are in `library`.
    """

    library: Any
    packed: Sequence[tuple[int, Sequence[int], str]]
    parameters: Parameters | None = None
    name: str = "main"
    packer: Any | None = None

    def require_fitting(self, rows: Sequence[Message]) -> None:
        """Raise ValueError if the parameters differ from the arguments of a run request."""
        if self.parameters is None:
            return
        if len(self.parameters) != len(rows):
            raise ValueError(f"Mismatched parameters: expected {len(rows)}, got {len(self.parameters)}")
        for (shape, dtype), row in zip(self.parameters, rows, strict=True):
            if (list(shape), dtype) != (list(row["shape"]), row["dtype"]):
                expected = f"{row['dtype']}{list(row['shape'])}"
                raise ValueError(f"Mismatched {row['name']}: expected {expected}, got {dtype}{list(shape)}")

    def arguments(self, tensors: Sequence[Any], buffers: Buffers) -> list[Any]:
        """Pack the constants and return the arguments of "main"."""
        packed_tensors = list(tensors)
        packer = self.library if self.packer is None else self.packer
        for number, (parameter, shape, dtype) in enumerate(self.packed):
            packed_tensors[parameter] = buffers.empty(shape, dtype, f"packed constant {number}")
            packer[f"pack{number}"](tensors[parameter], packed_tensors[parameter])
        return packed_tensors

    @staticmethod
    def beside(library: Any, path: Path) -> Built:
        """Return the Built of a library that was exported to a path and loaded here or on a server."""
        return Built(library, json.loads(packed_file(path).read_text()))


def packed_file(library: Path) -> Path:
    """Return the path of the list of packed constants, beside the library."""
    return library.with_suffix(".packed.json")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Timer of a library's function with fixed tensors; it must have been called before."""

    library: Any
    device: Any
    tensors: Sequence[Any]
    name: str = "main"

    def batch(self, calls: int) -> float:
        """Return the mean seconds per call of a number of calls.

        A single call on a CPU is timed in Python. Otherwise TVM's time_evaluator is used, which has no Python overhead,
        makes an untimed call first, and uses events on a GPU, where a call returns before its kernel ends.

        A batch in which another process took a core lasts some milliseconds longer, many times a short kernel's time.
        On a CPU a short one is timed again, up to `_ATTEMPTS` times in all, and the fastest time counts."""
        if self.device.type != "cpu":
            return self._timed(calls, 1)[0]
        fastest = math.inf
        for _ in range(_ATTEMPTS):
            taken = _cores_taken()
            seconds = self._once(calls)
            fastest = min(fastest, seconds)
            if _cores_taken() == taken or seconds * calls > _SHORT:
                break
        return fastest

    def _once(self, calls: int) -> float:
        """Return the mean seconds per call of a number of calls on a CPU."""
        if calls > 1:
            return self._timed(calls, 1)[0]
        started = time.perf_counter()
        self.library[self.name](*self.tensors)
        return time.perf_counter() - started

    def turn(self, calls: int) -> list[float]:
        """Return the seconds per call of each batch of a turn.

        An untimed call comes first, since other candidates have used the caches meanwhile."""
        return self._timed(calls, _TURN)

    def _timed(self, calls: int, batches: int) -> list[float]:
        """Return the seconds per call of each batch, measured by TVM."""
        timer = self.library.time_evaluator(self.name, self.device, number=calls, repeat=batches)
        return [float(seconds) for seconds in timer(*self.tensors).results]


def _cores_taken() -> int:
    """Return how often a thread of this process lost its core to another process, since the process started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def run(built: Built, device: Any, request: Message) -> tuple[Message, Stopwatch | None]:
    """Pack the constants, call the candidate once on new buffers, save or check its outputs, and optionally time it.

    Args:
        built: The candidate.
        device: TVM's device.
        request: The run request with these keys. "arguments" is a list of dicts of name, shape, dtype, written (whether
            the function stores to it), file (initial contents or None), reference (expected contents or None),
            tolerance and save (path for the output or None). "timing" is the fields of a Timing, or None. "best" is
            seconds per call, or None.

    Returns:
        The answer, and a stopwatch for further timing; None if nothing was timed. The answer has the key "timed", the
        seconds of timing, and "unwritten" if an output could not be saved.
    """
    built.require_fitting(request["arguments"])
    buffers = Buffers(device, fenced=True)
    packed = {parameter for parameter, _, _ in built.packed}
    tensors = [
        _tensor(argument, buffers, packed=place in packed) for place, argument in enumerate(request["arguments"])
    ]
    call_arguments = built.arguments(tensors, buffers)
    built.library[built.name](*call_arguments)
    error: float | None = None
    excess = -math.inf
    strange = 0
    for tensor, argument in zip(tensors, request["arguments"], strict=True):
        if argument["save"] is not None:
            result = _numbers(buffers, tensor)
            strange += int(result.size - np.isfinite(result).sum())
            try:
                np.save(argument["save"], result)
            except OSError as refusal:
                return {"status": Status.RUN_ERROR, "message": unwritten(refusal), "unwritten": True}, None
        if argument["reference"] is not None:
            distance = relative_error(_numbers(buffers, tensor), np.load(argument["reference"], mmap_mode="r"))
            error = distance if error is None else max(error, distance)
            excess = max(excess, distance - argument["tolerance"])
    if damage := buffers.damage():
        return {"status": Status.WRONG, "error": error, "message": damage}, None
    if excess > 0:
        message = f"the answer differs from the float64 reference by {error:.2g} of its largest value"
        return {"status": Status.WRONG, "error": error, "message": message}, None
    answer = {"status": Status.OK, "error": error, "repeats": (), "strange": strange}
    if request["timing"] is None:
        return answer, None
    stopwatch = Stopwatch(built.library, device, call_arguments, built.name)
    started = time.perf_counter()
    repeats = evaluate(stopwatch.batch, Timing(**request["timing"]), best=request["best"])
    return {**answer, "repeats": repeats, "timed": time.perf_counter() - started}, stopwatch


def unwritten(error: OSError) -> str:
    """Return why an array could not be written; NumPy gives no reason for a full disk."""
    return error.strerror or "no space left"


def _numbers(buffers: Buffers, tensor: Any) -> Any:
    """Return a tensor's contents as an array; bfloat16, which numpy lacks, as float32."""
    array = buffers.numbers(tensor)
    return array.astype(np.float32) if str(tensor.dtype) == "bfloat16" else array


def _tensor(argument: Message, buffers: Buffers, *, packed: bool) -> Any:
    """Return a new TVM tensor with an argument's initial contents; only the packing reads it if it is `packed`."""
    constant = argument["file"] is not None and not argument["written"]
    if argument["file"] is not None:  # mapped copy-on-write, so that writing to a tensor does not change the file
        contents = np.load(argument["file"], mmap_mode="c")
        if constant and packed:
            return buffers.mapped(contents, argument["dtype"], argument["name"])
        contents = contents.astype(argument["dtype"], copy=False)
    elif argument["reference"] is not None:
        contents = poison(np.load(argument["reference"], mmap_mode="r"), argument["dtype"])
    else:
        contents = np.zeros(argument["shape"], argument["dtype"])
        if "float" in argument["dtype"]:
            contents.fill(math.nan)
    return buffers.filled(contents, argument["dtype"], argument["name"], constant=constant)


def failure(error: Exception, status: Status, started: float) -> Message:
    """Return the answer to a request that raised an error; `started` is its time by time.perf_counter."""
    fault = fault_of(error, where="kernel")
    if fault is not None:
        error = fault
    text = " ".join(str(error).split())
    memory = isinstance(error, MemoryError) or "bad_alloc" in text
    return {
        "status": Status.OUT_OF_MEMORY if memory else status,
        "message": f"{type(error).__name__}: {text}"[:_MESSAGE_CHARACTERS],
        "elapsed": time.perf_counter() - started,
    }
