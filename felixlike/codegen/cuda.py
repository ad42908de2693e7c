"""What CUDA code is compiled with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from felixlike import tvmlib


@contextmanager
def cuda_compiler() -> Iterator[None]:
    """TVM compiles CUDA code by nvcc inside, where the Python package of nvrtc is missing and nothing was chosen."""
    chosen = "TVM_CUDA_COMPILE_MODE" in os.environ or importlib.util.find_spec("cuda") is not None
    if not chosen:
        os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"
    try:
        yield
    finally:
        if not chosen:
            del os.environ["TVM_CUDA_COMPILE_MODE"]


def cuda_binary(module: Any, target: Any) -> bytes:
    """The machine code nvcc makes of a scheduled IRModule for a cuda target. Raises RuntimeError with nvcc's words.

    TVM only writes CUDA source while there is no GPU; nvcc is called on it here."""
    nvcc = tvmlib.nvcc()
    compiled = tvmlib.tvm.compile(module, target=tvmlib.with_host(target))
    source = compiled.mod.imports[0].inspect_source()
    with target:
        return bytes(nvcc.compile_cuda(source, target_format="cubin", arch=str(target.attrs["arch"]), compiler="nvcc"))
