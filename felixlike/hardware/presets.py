"""Load descriptions of machines, so that schedules can be made for them on another machine.

Input: a machine's name, LLVM's name of its processor, or a GPU's architecture. Output: a `Device`. The descriptions are
in `machines.toml`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from felixlike.errors import InvalidDevice, UnknownTarget, first_line
from felixlike.hardware.device import Device, check_device

IMITATED = "FELIXLIKE_DEVICE"
"""The environment variable that names a described machine and, after a colon, its cores: "zen4", "zen4:8". Schedules
are then made for that machine, while code is generated for the host. It is for tests and for inspecting schedules of
other machines. LLVM splits vectors that the host lacks, so timings have no meaning."""


@cache
def _entries() -> dict[str, Device]:
    """Return everything that is described, by name."""
    text = Path(__file__).with_name("machines.toml").read_text(encoding="utf-8")
    return {name: _device(entry) for name, entry in tomllib.loads(text).items()}


@cache
def machines() -> dict[str, Device]:
    """Return all described machines by name: their CPUs."""
    return {name: device for name, device in _entries().items() if device.kind == "cpu"}


@cache
def gpus() -> dict[str, Device]:
    """Return all described GPUs by name."""
    return {name: device for name, device in _entries().items() if device.kind == "cuda"}


def described(name: str, *, cores: int | None = None) -> Device:
    """Return a described machine or GPU.

    Args:
        name: Name of an entry in `machines.toml`.
        cores: Number of cores, or multiprocessors, instead of the described one.

    Raises:
        UnknownTarget: If no machine or GPU has this name.
    """
    device = _found(name, _entries(), where="machine")
    return device if cores is None else replace(device, cores=cores)


def read_description(path: str | os.PathLike[str]) -> Device:
    """Read the description of a machine or a GPU from a file.

    Args:
        path: A .toml file with one entry, with the keys of `machines.toml`. The key `arch` makes it a GPU.

    Raises:
        InvalidDevice: If the file cannot be read, a value is missing, or a value is not possible.
    """
    where = os.fspath(path)
    try:
        entry = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidDevice(
            f"the file cannot be read: {first_line(error)}", where=where, remedy="give a valid .toml file"
        ) from None
    if len(entry) == 1 and isinstance(only := next(iter(entry.values())), dict):
        entry = only
    texts, numbers = (_GPU_TEXTS, _GPU_NUMBERS) if "arch" in entry else (_TEXTS, _NUMBERS)
    missing = [name for name in (*texts, *numbers) if name not in entry]
    if missing:
        keys = ", ".join((*texts, *numbers))
        raise InvalidDevice(f"the key {missing[0]} is missing", where=where, remedy=f"give a value for each of {keys}")
    wrong = [n for n in numbers if isinstance(entry[n], bool) or not isinstance(entry[n], int | float)]
    if wrong:
        what = f"expected {wrong[0]} to be a number, got {entry[wrong[0]]!r}"
        raise InvalidDevice(what, where=where, remedy="correct the hardware description")
    if "arch" in entry and not re.fullmatch(r"sm_\d+[af]?", str(entry["arch"])):
        what = f"expected arch to be an architecture, got {entry['arch']!r}"
        raise InvalidDevice(what, where=where, remedy='write it as in "sm_86"')
    if "arch" not in entry and entry["vector_bits"] < 32:
        what = f"expected vector_bits to be at least 32, got {entry['vector_bits']}"
        raise InvalidDevice(what, where=where, remedy="correct the hardware description")
    device = _device(entry)
    check_device(device)
    return device


_COMMON = ("l1_kib", "l2_kib", "memory_gib", "clock_mhz", "memory_gb_s")
_TEXTS, _NUMBERS = ("processor", "mcpu", "triple"), ("vector_bits", "vector_registers", "l3_mib", "cores", *_COMMON)
"""Keys of a machine's description."""
_GPU_TEXTS, _GPU_NUMBERS = ("processor", "arch"), ("multiprocessors", *_COMMON)
"""Keys of a GPU's description."""

_THREAD_REGISTERS = 255
"""Registers of a GPU's thread, of 4 bytes, since compute capability 3.5."""
_THREAD_VECTOR_BITS = 128
"""Bits of the widest load of a GPU's thread."""


def with_processor(mcpu: str) -> Device | None:
    """Return the first described machine with this processor, by LLVM's name, or GPU of this architecture, or None."""
    return next((device for device in _entries().values() if device.mcpu == mcpu), None)


def imitated() -> tuple[str, Device] | None:
    """Return the described machine that `IMITATED` names, with its name, or None if the variable is not set.

    Raises:
        UnknownTarget: If no machine has this name, or the number of cores is invalid.
    """
    name, _, cores = os.environ.get(IMITATED, "").partition(":")
    if not name:
        return None
    device = _found(name, machines(), where=IMITATED)
    if not cores:
        return name, device
    if not cores.isdecimal() or int(cores) < 1:
        what = f"expected a number of cores ≥ 1 after the colon, got {cores!r}"
        raise UnknownTarget(what, where=IMITATED, remedy='write it as in "zen4:8"')
    return name, replace(device, cores=int(cores))


def _found(name: str, entries: Mapping[str, Device], *, where: str) -> Device:
    """Return the entry with a name or raise UnknownTarget."""
    if name not in entries:
        raise UnknownTarget(f"unknown machine {name!r}", where=where, remedy=f"use one of {', '.join(entries)}")
    return entries[name]


def _device(entry: dict[str, Any]) -> Device:
    """Return the device of an entry in `machines.toml`."""
    gpu = "arch" in entry
    return Device(
        kind="cuda" if gpu else "cpu",
        name=entry["processor"],
        mcpu=entry["arch" if gpu else "mcpu"],
        triple="" if gpu else entry["triple"],
        cores=entry["multiprocessors" if gpu else "cores"],
        vector_bits=_THREAD_VECTOR_BITS if gpu else entry["vector_bits"],
        register_bytes=4 * _THREAD_REGISTERS if gpu else entry["vector_registers"] * entry["vector_bits"] // 8,
        l1_bytes=entry["l1_kib"] * 2**10,
        l2_bytes=entry["l2_kib"] * 2**10,
        l3_bytes=0 if gpu else entry["l3_mib"] * 2**20,
        memory_bytes=entry["memory_gib"] * 2**30,
        clock_hz=entry["clock_mhz"] * 1e6,
        memory_bandwidth=entry["memory_gb_s"] * 1e9,
    )
