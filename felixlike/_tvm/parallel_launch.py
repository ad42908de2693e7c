"""Start the parallel loops of compiled kernels: a pool of workers for each calling thread, on Linux.

TVM's own launch (src/runtime/thread_pool.cc) gives up the core whenever a worker or the caller waits. If another
process wants the core, it gets it for milliseconds at each loop, while the call waits for the worker. Here:

- Workers and callers wait busily for about as long as a short kernel takes before they give up the core.
- A task is claimed before it runs, and the caller claims those that no worker has begun when its own task is done. So
  each task runs once, and no call waits for a worker that has no core.

Kernels find a launch through the symbols that tvm_ffi sets in each library that it loads: a library that was loaded
before `prepare_launch` uses TVM's, and so does a thread without a pool.

parallel_launch.ll has the functions, since TVM brings LLVM and nothing else that can compile them. `felixlike_launch`
has the interface of TVMBackendParallelLaunch (tvm/runtime/c_backend_api.h). Task 0 is the caller's, and each other task
has a slot with a worker. Its state only grows:

    4j      job j - 1 is done
    4j + 1  job j is published
    4j + 2  job j is claimed, by the worker or by the caller
    4j + 3  job j has failed
    < 0     the worker must end
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from felixlike._tvm.names import IRModule, PrimFunc, Target, load_module, tirx, tvm
from felixlike._util import scratch

_SPINS = 2**13
"""Pauses before a waiting thread gives up the core. Chosen by hand."""

_YIELDS = 2**17
"""Waiting steps before a worker sleeps, most of which give up the core. Chosen by hand, like TVM's 300,000."""

_PAUSES = {"x86_64": "pause", "AMD64": "pause", "aarch64": "isb"}
"""The instruction of a waiting loop by the processor's architecture. Others have none."""


class Workers:
    """The workers of the calling thread, which run its parallel loops together with it until it ends."""

    def __init__(self, count: int) -> None:
        """Start `count` workers, which may run where the calling thread may."""
        functions = _functions()
        self._pool = functions.open(count)
        if not self._pool:
            raise MemoryError(f"no memory for {count} workers")
        self._threads = [
            threading.Thread(target=functions.work, args=(self._pool, task), name="felixlike-worker", daemon=True)
            for task in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def use(self, count: int) -> list[int]:
        """Let the next calls use `count` threads, the caller included, or all if there are fewer.

        Returns the system's numbers of the used workers.
        """
        used = self._threads[: count - 1]
        ctypes.c_int32.from_address(self._pool).value = len(used) + 1
        return [int(thread.native_id or 0) for thread in used]


def prepare_launch() -> None:
    """Let the libraries that are loaded from now on start their parallel loops here. It takes some 50 ms once."""
    if sys.platform == "linux":
        _functions()


@dataclass(frozen=True, slots=True)
class _Functions:
    """Functions of parallel_launch.ll.

    Attributes:
        launch: Starts a parallel loop, as TVMBackendParallelLaunch does.
        open: Makes the calling thread's pool for a number of workers, and returns its address.
        work: Runs the tasks of one number for a pool, until the pool's thread ends.
    """

    launch: Any
    open: Any
    work: Any


def _functions() -> _Functions:
    """Return the functions, which are the same in all threads."""
    with _lock:
        return _compiled()


_lock = threading.Lock()


@functools.cache
def _compiled() -> _Functions:
    """Compile the functions and make the launch known to tvm_ffi.

    They are never unloaded, as workers are inside them while the process ends.
    """
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    for name, value in {"PAUSE": _PAUSES.get(platform.machine(), ""), "SPINS": _SPINS, "YIELDS": _YIELDS}.items():
        text = text.replace(f"@{name}@", str(value))
    with tempfile.TemporaryDirectory(dir=scratch.base()) as folder:
        path = Path(folder) / "parallel_launch.ll"
        path.write_text(_layout() + text, encoding="utf-8")
        library = load_module(str(path))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    launch = library["launch"]()
    ctypes.CDLL(None).TVMFFIEnvModRegisterContextSymbol(b"__TVMBackendParallelLaunch", ctypes.c_void_p(launch))
    return _Functions(
        ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(launch),
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(library["open"]()),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(library["work"]()),
    )


def _layout() -> str:
    """Return the lines in which LLVM's text describes this machine."""
    nothing = PrimFunc([], tirx.Evaluate(0)).with_attr("global_symbol", "nothing")
    text = tvm.compile(IRModule({"nothing": nothing}), Target("llvm")).mod.inspect_source("ll")
    return "".join(re.findall("^target .*\n", text, re.MULTILINE))
