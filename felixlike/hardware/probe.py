"""Describe the host, from Linux's /proc and /sys. Other systems get modest defaults."""

import math
import os
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from felixlike import _tvm
from felixlike.hardware import cgroups
from felixlike.hardware.device import Device
from felixlike.hardware.instructions import host_cpu
from felixlike.hardware.presets import imitated
from felixlike.hardware.vectors import vector_unit

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Folder of cpu0's caches."""
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def host_device() -> Device:
    """Return the host CPU.

    While it imitates a described machine (`presets.IMITATED`), all values but its name and processor are that
    machine's. The function loads TVM, which knows LLVM's features of the processor.

    Raises:
        UnknownTarget: If the machine to be imitated is not described.
    """
    machine = imitated()
    host = _probed()
    return host if machine is None else replace(machine[1], name=host.name, mcpu=host.mcpu, triple=host.triple)


def host_cores() -> int:
    """Return the cores of `host_device` without loading TVM. Raises UnknownTarget as it does."""
    machine = imitated()
    return usable_cores() if machine is None else machine[1].cores


@cache
def _probed() -> Device:
    """Return the description of the host."""
    info = _cpuinfo()
    unit = vector_unit(_tvm.host_features())
    return Device(
        kind="cpu",
        name=info.get("model name", "unknown CPU"),
        mcpu=host_cpu(),
        cores=usable_cores(),
        vector_bits=unit.bits,
        register_bytes=unit.registers * unit.bits // 8,
        l1_bytes=_cache_bytes(level=1, default=32 * 2**10),
        l2_bytes=_cache_bytes(level=2, default=2**20),
        l3_bytes=_cache_bytes(level=3, default=0),
        memory_bytes=memory_bytes(),
        clock_hz=_clock(info),
    )


@cache
def measured_bandwidth() -> float:
    """Return the bytes per second that one thread reads from memory: the best of four passes. Takes 20 ms."""
    import numpy as np

    numbers = np.ones(2**23)  # 64 MiB
    passes = []
    for _ in range(4):
        started = time.perf_counter()
        numbers.sum()
        passes.append(time.perf_counter() - started)
    return float(numbers.nbytes / min(passes))


def _clock(info: dict[str, str]) -> float:
    """Return the clock of a core in Hz as Linux reports it, 2.5 GHz if it does not."""
    try:
        return float(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) * 1e3
    except (OSError, ValueError):
        number = info.get("cpu MHz", "")
        return float(number) * 1e6 if number.replace(".", "", 1).isdigit() else 2.5e9


def memory_bytes() -> int:
    """Return the main memory in bytes that this process may use: the machine's, or its container's limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = allowance().memory_bytes
    return physical if limit is None else min(physical, limit)


def free_memory_bytes() -> int | None:
    """Return the memory in bytes that this process can still take without ending others, or None if unknown.

    It is Linux's available memory, or the rest of the container's limit if it is less.
    """
    machine = _available_bytes()
    container = cgroups.allowance().free_bytes
    return min((free for free in (machine, container) if free is not None), default=None)


def _available_bytes() -> int | None:
    """Return Linux's available memory in bytes, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


@cache
def allowance() -> cgroups.Allowance:
    """Return the limits of this process's control groups at the time of the first call."""
    return cgroups.allowance()


def usable_cores() -> int:
    """Return the physical cores that this process may use: kernels gain nothing from two hyper-threads of a core.

    A container's processor time is rounded down to whole cores. Two threads would use up 1.5 cores (150 ms of every 100
    ms) within 75 ms and be stopped for the other 25. One thread is never stopped.
    """
    cores, quota = len(usable_processors()), allowance().cores
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


@cache
def usable_processors() -> tuple[frozenset[int], ...]:
    """Return the logical processors that this process may run on, grouped by physical core."""
    cores: dict[tuple[str, str], set[int]] = {}
    for processor in sorted(_AFFINITY):
        cores.setdefault(_physical(processor), set()).add(processor)
    return tuple(map(frozenset, cores.values()))


def all_cores() -> int:
    """Return the physical cores of the machine, including those that this process may not use."""
    return len({_physical(processor) for processor in range(os.cpu_count() or 1)})


def _physical(processor: int) -> tuple[str, str]:
    """Return (package, core) of a logical processor, or ("", processor) if the system does not provide them."""
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()
    except OSError:
        return "", str(processor)


def _allowed() -> frozenset[int]:
    """Return the processors that any thread of this process may run on.

    If the environment says so, OpenMP binds the main thread to one processor as soon as torch is imported. OpenMP's
    other threads, whose affinity shows the remaining processors, start with the first parallel loop.
    """
    binds = os.environ.get("OMP_PROC_BIND", "false").lower() != "false" or "GOMP_CPU_AFFINITY" in os.environ
    if "torch" in sys.modules and binds:
        import torch

        torch.ones(2**20).add_(1)
    try:
        threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
        return frozenset[int]().union(*map(os.sched_getaffinity, threads))
    except (AttributeError, OSError):  # not Linux, or a thread that has just ended
        return frozenset(range(os.cpu_count() or 1))


_AFFINITY = _allowed()
"""The allowed processors when felixlike was imported. Later, an OpenMP runtime that pins threads (OMP_PROC_BIND)
narrows the main thread's affinity as soon as torch is imported."""


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo, or {} if it does not exist."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cache_bytes(*, level: int, default: int) -> int:
    """Return the size of cpu0's data or unified cache of a level, in bytes."""
    for index in sorted(_CACHES.glob("index*")):
        try:
            if int((index / "level").read_text()) != level:
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return default
