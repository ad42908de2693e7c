"""Identify a server's machine, as its TVM reports it, and compare it with a target.

The input is an RPC session with its CrashGuard. The output is a Machine, and a text with its difference from the
target.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.hardware import cpu_with, host_target, instruction_sets, kind_of
from felixlike.measure.crash_guard import CrashGuard

_PRESENT = re.compile(r'"([^"]+)": T\.bool\(True\)')
_VERSION = re.compile(r"^__version__ = version = '([^']+)'", re.MULTILINE)
_LIBRARY = "libtvm_runtime"


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine of a server.

    Attributes:
        name: Name of the device, for records and messages.
        mcpu: LLVM's name of the processor.
        features: LLVM's names of the processor's features.
        threads: Number of threads of TVM's pool.
        processors: Number of logical processors.
        arch: Architecture of the GPU ("sm_90"); empty without one.
    """

    name: str
    mcpu: str
    features: frozenset[str]
    threads: int
    processors: int
    arch: str


def look(session: Any, assistant: CrashGuard, target: Any) -> Machine:
    """Return the Machine of a server; raise TVM's errors if its TVM lacks the functions for that."""
    ask = session.get_function
    listed_features = str(ask("ffi.ReprPrint")(ask("tvm.codegen.llvm.GetHostCPUFeatures")()))
    features = frozenset(_PRESENT.findall(listed_features))
    mcpu = cpu_with(str(ask("tvm.codegen.llvm.GetHostCPUName")()), features)
    name, arch = _processor_name(assistant) or mcpu, ""
    if not kind_of(target).on_host:
        gpu = _tvm.remote_device(session, target)
        if gpu.exist:
            name, arch = str(gpu.device_name), "sm_" + str(gpu.compute_version).replace(".", "")
    return Machine(
        name=name,
        mcpu=mcpu,
        features=features,
        threads=int(ask("runtime.NumThreads")()),
        processors=int(ask("s_tir.meta_schedule.cpu_count")(True)),
        arch=arch,
    )


def version(session: Any, assistant: CrashGuard) -> str:
    """Return the version of a server's TVM, read beside its libraries; "unknown" if pip did not install it."""
    maps = assistant.read("/proc/self/maps", until=_LIBRARY).splitlines()
    library = next((line.split()[-1] for line in maps if _LIBRARY in line), None)
    if library is None:
        return "unknown"
    home = PurePosixPath(library).parent.parent
    match = _VERSION.search(assistant.read(str(home / "_version.py")))
    return match[1] if match else "unknown"


def unfit(machine: Machine, target: Any) -> str:
    """Return how a server's machine differs from the target; empty if it does not."""
    if not kind_of(target).on_host:
        expected = str(target.attrs["arch"])
        if not machine.arch:
            return "TVM finds no GPU there"
        return "" if machine.arch == expected else f"its {machine.name} is {machine.arch}, the target is {expected}"
    expected = str(target.attrs.get("mcpu", ""))
    if expected and machine.mcpu != expected:
        return f"its processor is {machine.mcpu} ({machine.name}), the target is {expected}"
    missing = sorted(_needed(target) - machine.features)
    if missing:
        return f"its processor lacks {', '.join(missing)}"
    cores = int(target.attrs["num-cores"])
    if machine.processors < cores:
        return f"it has {counted(machine.processors, 'processor')}, the target {counted(cores, 'core')}"
    if machine.threads != cores:
        return (
            f"TVM uses {counted(machine.threads, 'thread')} there, the target has {counted(cores, 'core')}: "
            f"start the server with TVM_NUM_THREADS={cores}"
        )
    return ""


def _needed(target: Any) -> frozenset[str]:
    """Return the instruction sets that the target's code may use.

    For this machine's processor, only those that it has are returned: LLVM lists for a processor's name also features
    that a hypervisor may have hidden."""
    used = instruction_sets(_tvm.cpu_features(target))
    available = _tvm.host_features()
    return used & available if str(target.attrs.get("mcpu", "")) == str(host_target().attrs["mcpu"]) else used


def _processor_name(assistant: CrashGuard) -> str:
    """Return the "model name" of the server's /proc/cpuinfo; empty without one."""
    lines = (line.partition(":") for line in assistant.read("/proc/cpuinfo", until="\n\n").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
