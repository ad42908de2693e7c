"""Query NVIDIA's driver: its version, its GPUs and its problems.

Input: none. Output: `Driver`. The module needs neither TVM nor torch and creates no context on a GPU.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""
_WORDS = {
    _NO_DEVICE: "the driver finds no GPU",
    3: "this process was forked from one that used the GPU",
    802: "the system is not ready (fabric manager)",
    803: "the driver does not match the loaded kernel module: another version was installed but not loaded",
    804: "the driver is older than the CUDA libraries require on this GPU",
}
"""Descriptions of cuInit's errors (CUresult in cuda.h)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The state of NVIDIA's driver.

    Attributes:
        version: The newest CUDA version that it supports, as in "13.0", empty if there is no driver.
        gpus: (name, architecture) of each GPU.
        problem: Why the driver cannot be used, empty if it can be, or if there is none.
    """

    version: str = ""
    gpus: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def driver() -> Driver:
    """Query the driver of this machine."""
    library = _library()
    if library is None:
        return Driver()
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    failed = int(library.cuInit(0))
    if failed:
        return Driver(version, (), _WORDS.get(failed, f"the driver failed to start (error {failed})"))
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(version, tuple(_gpu(library, index) for index in range(count.value)))


def _gpu(library: Any, index: int) -> tuple[str, str]:
    """Return (name, architecture) of a GPU."""
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
    """Load the driver's library, or return None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
