"""What a server's machine is, as its TVM reports it, and whether that is what a target was made for.

In: an RPC session with its CrashGuard. Out: a Machine; `unfit` says in words how it differs from a target.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.hardware import host_target, instruction_sets, kind_of
from felixlike.measure.crash_guard import CrashGuard

_PRESENT = re.compile(r'"([^"]+)": T\.bool\(True\)')
_VERSION = re.compile(r"^__version__ = version = '([^']+)'", re.MULTILINE)
_LIBRARY = "libtvm_runtime"


@dataclass(frozen=True, slots=True)
class Machine:
    """name: of the device, for people and records.  mcpu, features: LLVM's names of the processor and of what it can
    do.  threads: of TVM's thread pool.  processors: logical ones.  arch: of the GPU; empty without one."""

    name: str
    mcpu: str
    features: frozenset[str]
    threads: int
    processors: int
    arch: str


def look(session: Any, assistant: CrashGuard, target: Any) -> Machine:
    """Ask a server.  Raises what TVM raises if its TVM lacks the functions asked for."""
    ask = session.get_function
    mcpu = str(ask("tvm.codegen.llvm.GetHostCPUName")())
    found = str(ask("ffi.ReprPrint")(ask("tvm.codegen.llvm.GetHostCPUFeatures")()))
    name, arch = _processor_name(assistant) or mcpu, ""
    if not kind_of(target).on_host:
        gpu = _tvm.remote_device(session, target)
        if gpu.exist:
            name, arch = str(gpu.device_name), "sm_" + str(gpu.compute_version).replace(".", "")
    return Machine(
        name=name,
        mcpu=mcpu,
        features=frozenset(_PRESENT.findall(found)),
        threads=int(ask("runtime.NumThreads")()),
        processors=int(ask("s_tir.meta_schedule.cpu_count")(True)),
        arch=arch,
    )


def version(session: Any, assistant: CrashGuard) -> str:
    """The version of a server's TVM, read beside its libraries; "unknown" where it was not installed by pip."""
    maps = assistant.read("/proc/self/maps", until=_LIBRARY).splitlines()
    library = next((line.split()[-1] for line in maps if _LIBRARY in line), None)
    if library is None:
        return "unknown"
    home = PurePosixPath(library).parent.parent
    found = _VERSION.search(assistant.read(str(home / "_version.py")))
    return found[1] if found else "unknown"


def unfit(machine: Machine, target: Any) -> str:
    """How a server's machine differs from the target; empty if it does not."""
    if not kind_of(target).on_host:
        wanted = str(target.attrs["arch"])
        if not machine.arch:
            return "TVM finds no GPU there"
        return "" if machine.arch == wanted else f"its {machine.name} is {machine.arch}, the target is {wanted}"
    wanted = str(target.attrs.get("mcpu", ""))
    if wanted and machine.mcpu != wanted:
        return f"its processor is {machine.mcpu} ({machine.name}), the target is {wanted}"
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
    """Instruction sets the target's code may use; for this machine's processor, those that it has: LLVM lists under a
    processor's name also what a hypervisor may have hidden."""
    wanted = instruction_sets(_tvm.cpu_features(target))
    here = _tvm.host_features()
    return wanted & here if str(target.attrs.get("mcpu", "")) == str(host_target().attrs["mcpu"]) else wanted


def _processor_name(assistant: CrashGuard) -> str:
    """The name by which this package calls the server's processor; empty where Linux does not say."""
    lines = (line.partition(":") for line in assistant.read("/proc/cpuinfo", until="\n\n").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
