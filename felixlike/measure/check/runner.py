"""What every process does with a candidate that is built, here or on a server: call it, check it, time it.

In: a library and the pool's run request. Out: the answer, and what can time more. Follows MetaSchedule's
default_run_evaluator (tvm/s_tir/meta_schedule).
"""

from __future__ import annotations

import json
import math
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

_TURN = 2
"""Batches of a turn."""


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate's library, with "main" and for each constant that is packed before the first call "pack0", "pack1", …

    packed: (parameter, shape, dtype) of each of those."""

    library: Any
    packed: Sequence[tuple[int, Sequence[int], str]]

    def arguments(self, tensors: Sequence[Any], buffers: Buffers) -> list[Any]:
        """What "main" is called with: the tensors, constants packed."""
        given = list(tensors)
        for number, (parameter, shape, dtype) in enumerate(self.packed):
            given[parameter] = buffers.empty(shape, dtype, f"packed constant {number}")
            self.library[f"pack{number}"](tensors[parameter], given[parameter])
        return given

    @staticmethod
    def beside(library: Any, path: Path) -> Built:
        """A library that was exported to a path, loaded here or elsewhere."""
        return Built(library, json.loads(packed_file(path).read_text()))


def packed_file(library: Path) -> Path:
    """Where it is written what a library packs, beside the library."""
    return library.with_suffix(".packed.json")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls of a library's "main" with given tensors, which has been called before."""

    library: Any
    device: Any
    tensors: Sequence[Any]

    def batch(self, calls: int) -> float:
        """Seconds per call over some calls.

        A single call is long enough to be timed from here; more are timed by TVM's own loop, free of Python's overhead,
        which makes an untimed call first. On a GPU, where a call returns before its kernel ends, TVM's loop uses
        events."""
        if calls > 1 or self.device.type != "cpu":
            return self._timed(calls, 1)[0]
        started = time.perf_counter()
        self.library["main"](*self.tensors)
        return time.perf_counter() - started

    def turn(self, calls: int) -> list[float]:
        """Seconds per call of a turn's batches, after an untimed call: others have used the caches meanwhile."""
        return self._timed(calls, _TURN)

    def _timed(self, calls: int, batches: int) -> list[float]:
        timer = self.library.time_evaluator("main", self.device, number=calls, repeat=batches)
        return [float(seconds) for seconds in timer(*self.tensors).results]


def run(built: Built, device: Any, request: Message) -> tuple[Message, Stopwatch | None]:
    """Call once on fresh buffers of the device, save or check what came out, and time further calls if asked to;
    constants are packed before, once. The answer, and what can time more; None if nothing was timed.

    More in an answer that could not be saved: unwritten.

    arguments: dicts of name, shape, dtype, written (whether the function stores to it), file (initial contents or
    None), reference (expected contents or None), tolerance, save (where to keep what came out, or None).  timing: a
    Timing's fields, or None.  best: seconds or None."""
    buffers = Buffers(device)
    tensors = [_tensor(argument, buffers) for argument in request["arguments"]]
    given = built.arguments(tensors, buffers)
    built.library["main"](*given)
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
    stopwatch = Stopwatch(built.library, device, given)
    repeats = evaluate(stopwatch.batch, Timing(**request["timing"]), best=request["best"])
    return {**answer, "repeats": repeats}, stopwatch


def unwritten(error: OSError) -> str:
    """Why an array could not be written; NumPy does not say where it was stopped by a full disk."""
    return error.strerror or "no space left"


def _numbers(buffers: Buffers, tensor: Any) -> Any:
    """What a tensor holds as an array; of float32 for bfloat16, which numpy does not have."""
    found = buffers.numbers(tensor)
    return found.astype(np.float32) if str(tensor.dtype) == "bfloat16" else found


def _tensor(argument: Message, buffers: Buffers) -> Any:
    """A fresh TVM tensor with an argument's initial contents."""
    constant = argument["file"] is not None and not argument["written"]
    if argument["file"] is not None:
        contents = np.load(argument["file"], mmap_mode="r").astype(argument["dtype"], copy=False)
    elif argument["reference"] is not None:
        contents = poison(np.load(argument["reference"], mmap_mode="r"), argument["dtype"])
    else:
        contents = np.zeros(argument["shape"], argument["dtype"])
        if "float" in argument["dtype"]:
            contents.fill(math.nan)
    return buffers.filled(contents, argument["dtype"], argument["name"], constant=constant)


def failure(error: Exception, status: Status, started: float) -> Message:
    """The answer to a request that raised an error.  started: by time.perf_counter, when the request came."""
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
