"""A candidate's process: builds the module it is sent, waits, and only on request calls, checks and times it.

In: messages from the pool: "build", "run", and any number of turns. Out: one answer to each. Follows MetaSchedule's
default_build and default_run_evaluator (tvm/s_tir/meta_schedule), without files, C++ compiler or a new Python process.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from felixlike import codegen, tvmlib
from felixlike.frontend.constants import PACKING
from felixlike.hardware import placement
from felixlike.measure import messages
from felixlike.measure.confine import confine, limit_memory
from felixlike.measure.evaluator import evaluate
from felixlike.measure.limits import Timing
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message
from felixlike.measure.packing import cut
from felixlike.measure.verify import poison, relative_error

_MESSAGE_CHARACTERS = 300

_TURN = 2
"""Batches of a turn."""


def main(channel_fd: int, server: int) -> NoReturn:
    """Serve one candidate, then leave without any clean-up of the server's copied state."""
    try:
        confine(server)
        _serve(socket.socket(fileno=channel_fd))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _serve(channel: socket.socket) -> None:
    request = messages.receive(channel)
    limit_memory(request["memory"])
    if "server" in request:
        from felixlike.measure import remote_process

        messages.send(channel, remote_process.visit(request))
        return
    started = time.perf_counter()
    try:
        target = tvmlib.Target(request["target"])
        if "export" in request:
            code = export(request["module"], target, **request["export"])
            messages.send(channel, {"status": Status.OK, "code": code, "elapsed": time.perf_counter() - started})
            return
        built, code = build(request["module"], target)
        device = tvmlib.device_of(target)
        device.sync()  # a GPU's context is made here, while others build, and not between two timings
    except Exception as error:
        messages.send(channel, failure(error, Status.BUILD_ERROR, started))
        return
    messages.send(channel, {"status": Status.OK, "code": code, "elapsed": time.perf_counter() - started})
    request = messages.receive(channel)
    started = time.perf_counter()
    stopwatch = None
    try:
        if device.type == "cpu":
            placement.hold()
        answer, stopwatch = run(built, device, request)
    except Exception as error:
        answer = failure(error, Status.RUN_ERROR, started)
    messages.send(channel, {**answer, "elapsed": time.perf_counter() - started})
    while stopwatch is not None:
        request = messages.receive(channel)
        started = time.perf_counter()
        repeats = stopwatch.turn(request["calls"])
        messages.send(channel, {"status": Status.OK, "repeats": repeats, "elapsed": time.perf_counter() - started})


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate's library, with "main" and for each constant that is packed before the first call "pack0", "pack1", …

    packed: (parameter, shape, dtype) of each of those."""

    library: Any
    packed: Sequence[tuple[int, Sequence[int], str]]

    def arguments(self, tensors: Sequence[Any], device: Any) -> list[Any]:
        """What "main" is called with: the tensors, constants packed."""
        given = list(tensors)
        for number, (parameter, shape, dtype) in enumerate(self.packed):
            given[parameter] = tvmlib.runtime.empty(tuple(shape), dtype, device)
            self.library[f"pack{number}"](tensors[parameter], given[parameter])
        return given

    @staticmethod
    def beside(library: Any, path: Path) -> Built:
        """A library that was exported to a path, loaded here or elsewhere."""
        return Built(library, json.loads(_packed_file(path).read_text()))


def build(module: str, target: Any) -> tuple[Built, str]:
    """The compiled library of a module for a target, and the digest of its code.  module: TVM's JSON.

    Looking "main" up makes LLVM generate its machine code here rather than at the first call."""
    executable, packed = _compile(module, target)
    library = executable.jit()
    library["main"]
    return Built(library, packed), codegen.code_digest(executable)


def export(module: str, target: Any, *, path: str, compiler: str) -> str:
    """Put the compiled library of a module into a file, for servers, and what it packs beside it; the digest of its
    code.

    compiler: any C compiler, which links it; its intermediate files lie beside it."""
    executable, packed = _compile(module, target)
    executable.export_library(path, cc=compiler, workspace_dir=os.path.dirname(path))
    _packed_file(Path(path)).write_text(json.dumps(packed))
    return codegen.code_digest(executable)


def _compile(module: str, target: Any) -> tuple[Any, list[tuple[int, Sequence[int], str]]]:
    """The executable of a module, constants packed by functions of their own as when it is deployed; what they pack."""
    loaded = tvmlib.ir.load_json(module)
    if PACKING not in module:
        return codegen.compile_primfuncs(loaded, target), []
    kernel, packings = cut(loaded["main"])
    functions = {"main": kernel, **{f"pack{i}": packing.function for i, packing in enumerate(packings)}}
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    executable = codegen.compile_primfuncs(tvmlib.IRModule(named), target)
    return executable, [(packing.parameter, packing.shape, packing.dtype) for packing in packings]


def _packed_file(library: Path) -> Path:
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

    arguments: dicts of shape, dtype, file (initial contents or None), reference (expected contents or None), tolerance,
    save (where to keep what came out, or None).  timing: a Timing's fields, or None.  best: seconds or None."""
    tensors = [_tensor(argument, device) for argument in request["arguments"]]
    given = built.arguments(tensors, device)
    built.library["main"](*given)
    error: float | None = None
    excess = -math.inf
    strange = 0
    for tensor, argument in zip(tensors, request["arguments"], strict=True):
        if argument["save"] is not None:
            result = _numbers(tensor)
            strange += int(result.size - np.isfinite(result).sum())
            np.save(argument["save"], result)
        if argument["reference"] is not None:
            distance = relative_error(_numbers(tensor), np.load(argument["reference"], mmap_mode="r"))
            error = distance if error is None else max(error, distance)
            excess = max(excess, distance - argument["tolerance"])
    if excess > 0:
        message = f"the answer differs from the float64 reference by {error:.2g} of its largest value"
        return {"status": Status.WRONG, "error": error, "message": message}, None
    answer = {"status": Status.OK, "error": error, "repeats": (), "strange": strange}
    if request["timing"] is None:
        return answer, None
    stopwatch = Stopwatch(built.library, device, given)
    repeats = evaluate(stopwatch.batch, Timing(**request["timing"]), best=request["best"])
    return {**answer, "repeats": repeats}, stopwatch


def _numbers(tensor: Any) -> Any:
    """What a tensor holds as an array; of float32 for bfloat16, which numpy does not have."""
    found = tensor.numpy()
    return found.astype(np.float32) if str(tensor.dtype) == "bfloat16" else found


def _tensor(argument: Message, device: Any) -> Any:
    """A fresh TVM tensor on the device with an argument's initial contents."""
    if argument["file"] is not None:
        contents = np.load(argument["file"], mmap_mode="r").astype(argument["dtype"], copy=False)
    elif argument["reference"] is not None:
        contents = poison(np.load(argument["reference"], mmap_mode="r"), argument["dtype"])
    else:
        contents = np.zeros(argument["shape"], argument["dtype"])
        if "float" in argument["dtype"]:
            contents.fill(math.nan)
    return tvmlib.runtime.tensor(contents, device)


def failure(error: Exception, status: Status, started: float) -> Message:
    """The answer to a request that raised an error.  started: by time.perf_counter, when the request came."""
    text = " ".join(str(error).split())
    memory = isinstance(error, MemoryError) or "bad_alloc" in text
    return {
        "status": Status.OUT_OF_MEMORY if memory else status,
        "message": f"{type(error).__name__}: {text}"[:_MESSAGE_CHARACTERS],
        "elapsed": time.perf_counter() - started,
    }
