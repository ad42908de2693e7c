"""NVIDIA's driver, asked directly: whether it is there, how new it is, which GPUs it has, what is wrong.

In: nothing. Out: `Driver`. Needs neither TVM nor torch; leaves no context on a GPU behind.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NO_DEVICE = 100
_WORDS = {
    _NO_DEVICE: "it sees no GPU",
    3: "this process was forked from one that used the GPU",
    802: "the system is not ready (fabric manager)",
    803: "it does not fit the kernel module: another version was installed and not loaded",
    804: "it is older than the CUDA libraries allow on this GPU",
}
"""Of some of cuInit's errors (CUresult in cuda.h)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """version: the newest CUDA that it supports, as in "13.0"; empty where there is no driver.  gpus: (name,
    architecture) of each.  problem: why it cannot be used; empty where it can, and where there is none."""

    version: str = ""
    gpus: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def driver() -> Driver:
    """This machine's."""
    library = _library()
    if library is None:
        return Driver()
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    failed = int(library.cuInit(0))
    if failed:
        return Driver(version, (), _WORDS.get(failed, f"it does not start (error {failed})"))
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(version, tuple(_gpu(library, index) for index in range(count.value)))


def _gpu(library: Any, index: int) -> tuple[str, str]:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return name.value.decode(errors="replace"), "sm_" + "".join(capability)


def _library() -> Any | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
