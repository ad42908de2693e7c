"""The processors that code is made for and runs on, and the threads that run it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from felixlike._tvm.names import Target, tvm


def version() -> str:
    """TVM's version, as stored beside measurements."""
    return str(tvm.__version__)


def llvm_version() -> str:
    """The version of the LLVM that TVM generates code with."""
    return str(tvm.target.codegen.llvm_version_major())


def host_cpu() -> str:
    """LLVM's name of the processor of this machine."""
    return str(tvm.target.codegen.llvm_get_system_cpu())


_ONE_PROCESSOR_EACH = -2
"""kSpecifyOneCorePerThread (src/runtime/threading_backend.h)."""


_LAUNCHED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""FTVMParallelLambda (tvm/runtime/c_backend_api.h): task, environment, data → 0."""


def launch_threads(processors: Sequence[int]) -> list[int]:
    """Have TVM run code that the calling thread calls on a thread for each of these processors, itself among them: the
    system's numbers of the threads that it does run on.

    TVM reads how many from the environment at every parallel loop, and takes half of the logical processors where it
    finds nothing, unless it was told on the same thread; nothing has to stand in the environment then, where children
    would find it.  Changes what the calling thread may run on (src/runtime/threading_backend.cc, SetAffinity)."""
    names = [str(processor) for processor in processors]
    tvm.get_global_func("runtime.config_threadpool")(_ONE_PROCESSOR_EACH, len(names), names)
    return wake_threads()


def wake_threads() -> list[int]:
    """Run nothing on the calling thread's pool: the system's numbers of its threads, which then wait for more work for
    some 30 ms before they sleep."""
    found: dict[int, int] = {}

    def note(task: int, environment: Any, data: Any) -> int:
        found[task] = threading.get_native_id()
        return 0

    ctypes.CDLL(None).TVMBackendParallelLaunch(_LAUNCHED(note), None, 0)
    return [found[task] for task in sorted(found)]


def cpu_features(target: Any) -> frozenset[str]:
    """LLVM's names of the instruction sets and tunings that code for this llvm target may rely on."""
    return frozenset(str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target))


def knows_cpu(name: str, triple: str) -> bool:
    """Whether LLVM knows a processor by this name. Of another it would say so on stderr, and take a plain one."""
    return bool(tvm.target.codegen.llvm_is_valid_cpu(name, triple))


def host_features() -> frozenset[str]:
    """What the processor of this machine can do, by LLVM's own look at it."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(feature) for feature, present in found.items() if present)


def device_of(target: Any) -> Any:
    """The device that code for a target runs on: the first GPU, or the CPU.  Its `exist` says whether it is there."""
    return tvm.runtime.device(target.get_target_device_type(), 0)


def remote_device(session: Any, target: Any) -> Any:
    """The same of a server.  session: an RPC session with it."""
    return session.device(device_of(target).type)


def with_host(target: Any) -> Any:
    """A target that says what its host is: this machine's processor."""
    return target if target.host is not None else Target(target, host={"kind": "llvm", "mcpu": host_cpu()})
