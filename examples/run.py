"""A model that felixlike exported, called from Python with TVM's runtime alone: NumPy in and out, no torch.

    Optimized.export_library("model.so")                     in Python, once
    python examples/run.py model.so input.npy output.npy

What is needed: NumPy, apache-tvm-ffi, and libtvm_runtime.so of the wheel apache-tvm (which is not imported).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

CPU, POOLED = 1, 2
"""TVM's numbers of the device and of the allocator that keeps memory for later calls."""


class Model:
    """A library's model.  A call takes and gives arrays; wrong shapes raise."""

    def __init__(self, path: str) -> None:
        runtime = importlib.metadata.distribution("apache-tvm").locate_file("tvm/lib/libtvm_runtime.so")
        ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
        library = tvm_ffi.load_module(str(Path(path).resolve()))
        self._machine = library["vm_load_executable"]()
        self._machine["vm_initialization"](CPU, 0, POOLED)
        self._main = self._machine["main"]

    def __call__(self, *arrays: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:
        """The outputs, which share the memory of TVM's tensors."""
        result = self._main(*(tvm_ffi.from_dlpack(_aligned(array)) for array in arrays))
        outputs = [result] if isinstance(result, tvm_ffi.Tensor) else list(result)
        return [np.from_dlpack(output) for output in outputs]


def _aligned(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The array, or a copy that starts at a multiple of 64 bytes, as generated code wants it."""
    if array.flags.c_contiguous and array.ctypes.data % 64 == 0:
        return array
    memory = np.empty(array.nbytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


if __name__ == "__main__":
    outputs = Model(sys.argv[1])(*(np.load(path) for path in sys.argv[2:-1]))
    np.save(sys.argv[-1], outputs[0])
