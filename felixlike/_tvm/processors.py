"""Query the processors that code is generated for and runs on, and the threads that run it."""

from __future__ import annotations

import functools
from typing import Any

from felixlike._tvm.names import Target, tvm


def version() -> str:
    """Return TVM's version, as stored with measurements."""
    return str(tvm.__version__)


def llvm_version() -> str:
    """Return the version of TVM's LLVM."""
    return str(tvm.target.codegen.llvm_version_major())


def host_cpu() -> str:
    """Return LLVM's name of the host's processor. It follows from the model number, which a hypervisor may change."""
    return str(tvm.target.codegen.llvm_get_system_cpu())


_ONE_PROCESSOR_EACH = -2
"""kSpecifyOneCorePerThread (src/runtime/threading_backend.h)."""


def launch_threads(count: int) -> None:
    """Make TVM run the calling thread's code on `count` threads, the caller included, on systems other than Linux.

    TVM reads their number from the environment at every parallel loop, or takes half of the logical processors, unless
    it was configured on the same thread. With this function, the environment, which children inherit, need not be set.
    """
    tvm.get_global_func("runtime.config_threadpool")(_ONE_PROCESSOR_EACH, count, ["0"] * count)


def cpu_features(target: Any) -> frozenset[str]:
    """Return LLVM's names of the instruction sets and tunings that code for an llvm target may rely on."""
    return _cpu_features(str(target))


@functools.cache
def _cpu_features(target: str) -> frozenset[str]:
    """Return what `cpu_features` does, of a target's text. LLVM takes 0.2 ms, and rewrites ask for each operator."""
    return frozenset(str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(Target(target)))


def knows_cpu(name: str, triple: str) -> bool:
    """Return whether LLVM knows a processor's name. For unknown names, LLVM prints to stderr and uses a generic one."""
    return bool(tvm.target.codegen.llvm_is_valid_cpu(name, triple))


def known_cpus() -> list[str]:
    """Return LLVM's names of the processors of the host's architecture."""
    return [str(name) for name in tvm.get_global_func("target.llvm_get_cpu_archlist")(Target({"kind": "llvm"}))]


@functools.cache
def host_features() -> frozenset[str]:
    """Return LLVM's names of the features that it detects on the host."""
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(feature) for feature, present in features.items() if present)


def device_of(target: Any) -> Any:
    """Return the device that a target's code runs on: the first GPU, or the CPU. Its `exist` says whether it exists."""
    return tvm.runtime.device(target.get_target_device_type(), 0)


def remote_device(session: Any, target: Any) -> Any:
    """Return the device of a server that a target's code runs on. `session` is an RPC session with it."""
    return session.device(device_of(target).type)


def with_host(target: Any) -> Any:
    """Return the target with a host: this machine's processor unless it has one."""
    return target if target.host is not None else Target(target, host={"kind": "llvm", "mcpu": host_cpu()})
