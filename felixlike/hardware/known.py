"""Machines that are described: what schedules for them may rely on is known without being on one.

In: a machine's name, or LLVM's name of its processor. Out: a `Device`. The descriptions lie in `machines.toml`.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from felixlike.errors import UnknownTarget
from felixlike.hardware.device import Device

IMITATED = "FELIXLIKE_DEVICE"
"""The environment variable that names a machine, and after a colon its cores: "zen4", "zen4:8". Schedules are made as
for that machine then, while code is generated for the processor it runs on. For tests, and for seeing what happens
elsewhere: vectors that the processor lacks are taken apart by LLVM, so nothing is to be learned about speed."""


@cache
def machines() -> dict[str, Device]:
    """All described machines by name."""
    text = Path(__file__).with_name("machines.toml").read_text()
    return {name: _device(entry) for name, entry in tomllib.loads(text).items()}


def described(name: str, *, cores: int | None = None) -> Device:
    """A machine by its name.  cores: as many instead of the described ones.  Raises UnknownTarget."""
    device = _found(name, where="machine")
    return device if cores is None else replace(device, cores=cores)


def with_processor(mcpu: str) -> Device | None:
    """The described machine with this processor, by LLVM's name; None where there is none."""
    return next((device for device in machines().values() if device.mcpu == mcpu), None)


def imitated() -> tuple[str, Device] | None:
    """The described machine that this one stands in for, with its name; None without `IMITATED`.

    Raises UnknownTarget where the variable names none."""
    name, _, cores = os.environ.get(IMITATED, "").partition(":")
    if not name:
        return None
    device = _found(name, where=IMITATED)
    if not cores:
        return name, device
    if not cores.isdecimal() or int(cores) < 1:
        raise UnknownTarget(f"it asks for {cores!r} cores", where=IMITATED, remedy='say it as in "zen4:8"')
    return name, replace(device, cores=int(cores))


def _found(name: str, *, where: str) -> Device:
    if name not in machines():
        remedy = f"use one of {', '.join(machines())}"
        raise UnknownTarget(f"{name!r} is no described machine", where=where, remedy=remedy)
    return machines()[name]


def _device(entry: dict[str, Any]) -> Device:
    return Device(
        kind="cpu",
        name=entry["processor"],
        mcpu=entry["mcpu"],
        triple=entry["triple"],
        cores=entry["cores"],
        vector_bits=entry["vector_bits"],
        register_bytes=entry["vector_registers"] * entry["vector_bits"] // 8,
        l1_bytes=entry["l1_kib"] * 2**10,
        l2_bytes=entry["l2_kib"] * 2**10,
        l3_bytes=entry["l3_mib"] * 2**20,
        memory_bytes=entry["memory_gib"] * 2**30,
    )
