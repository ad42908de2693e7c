"""Compile CUDA source to machine code, by NVRTC in this process or by nvcc if that library is missing.

TVM puts libcu++'s headers before every source. Parsing them takes most of the time (0.9 of 1.1 s of a typical kernel),
and generated code needs only a few typedefs of them. Divisions and square roots stay exact: TVM would compile with
--use_fast_math.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from felixlike import _tvm
from felixlike._util import scratch
from felixlike.codegen import nvrtc
from felixlike.codegen.cubin import kernels_of
from felixlike.codegen.passes.tensor_cores import FUNCTIONS, uses_tensor_cores
from felixlike.errors import CompilationFailed, MissingCompiler
from felixlike.hardware.occupancy import Kernel

_CALLBACK = "tvm_callback_cuda_compile"
"""TVM's global function that compiles CUDA source for the current target."""

_MODE = "TVM_CUDA_COMPILE_MODE"
"""TVM's environment variable that selects "nvrtc" or "nvcc"."""

_TVMS_HEADERS = re.compile(r"\A\s*#ifdef __CUDACC_RTC__\n.*?#include <cuda\.h>\n#endif\n", re.DOTALL)
"""TVM's includes at the start of a source."""

_BUILT_IN = "#include <sm_61_intrinsics.h>\n"
"""The header of sums of four products of bytes, which NVRTC has built in."""

_PREAMBLE = """\
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""
"""What generated code needs of the removed headers."""


def cuda_toolchain() -> str:
    """Return what compiles CUDA source on this machine: "nvrtc", "nvcc", or an empty string for none."""
    mode = os.environ.get(_MODE, "").lower()
    available = {"nvrtc": nvrtc.library() is not None, "nvcc": shutil.which("nvcc") is not None}
    return next((name for name in ("nvrtc", "nvcc") if available[name] and mode in ("", name)), "")


def require_toolchain() -> str:
    """Return the result of `cuda_toolchain` if it is not empty.

    Raises:
        MissingCompiler: If there is no CUDA compiler.
    """
    toolchain = cuda_toolchain()
    if not toolchain:
        selected = os.environ.get(_MODE)
        raise MissingCompiler(
            f"the CUDA compiler selected by {_MODE}={selected} was not found"
            if selected
            else "neither NVRTC nor nvcc was found, so CUDA code cannot be compiled",
            where="target",
            remedy='run pip install "felixlike[cuda]", which includes NVRTC, or add nvcc to PATH',
        )
    return toolchain


def compile_source(code: str, arch: str) -> bytes:
    """Compile TVM's CUDA source to a cubin.

    Args:
        code: TVM's CUDA source.
        arch: The architecture, as in "sm_90".

    Raises:
        MissingCompiler: If there is no CUDA compiler, or headers that the source needs are missing.
        CompilationFailed: If the compiler fails.
    """
    functions = FUNCTIONS if uses_tensor_cores(code) else ""
    if require_toolchain() == "nvcc":
        return _by_nvcc(functions + code, arch)
    source = _TVMS_HEADERS.sub("", code, count=1).replace(_BUILT_IN, "")
    options = [f"--gpu-architecture={arch}", "-default-device", "--device-int128"]
    headers = nvrtc.header_folder() if "#include" in source else None
    if headers is not None:
        options += [f"-I{headers}", f"-I{headers}/cccl"]
    elif re.search(r"#include <cuda_(fp16|bf16|fp8)", source):
        raise MissingCompiler(
            "NVRTC was found, but not the CUDA headers for float16 and bfloat16 (cuda_fp16.h)",
            where="target",
            remedy='run pip install "felixlike[cuda]", which includes them, or set CUDA_HOME',
        )
    return nvrtc.compiled(_PREAMBLE + functions + source, options)


def _by_nvcc(code: str, arch: str) -> bytes:
    """Compile CUDA source to a cubin by nvcc."""
    with scratch.temporary("nvcc") as folder:
        source, cubin = folder / "kernels.cu", folder / "kernels.cubin"
        source.write_text(code)
        command = ["nvcc", "-cubin", "-O3", "-arch", arch, "-o", str(cubin), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not cubin.is_file():
            errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
            raise CompilationFailed(f"nvcc failed: {(errors or ['no error message'])[0][:300]}", where="CUDA source")
        return cubin.read_bytes()


@contextmanager
def cuda_compiler(target: Any, kernels: list[Kernel] | None = None) -> Iterator[None]:
    """Make TVM compile CUDA code by `compile_source` for this target inside the context.

    The resources of each kernel are appended to `kernels`. Without a GPU, TVM generates source and does not compile it.
    """
    arch = str(target.attrs["arch"])

    def compiled(code: str, *_: Any) -> bytes:
        binary = compile_source(code, arch)
        if kernels is not None:
            kernels.extend(kernels_of(binary, arch))
        return binary

    original = _tvm.tvm_ffi.get_global_func(_CALLBACK, allow_missing=True)
    _tvm.tvm_ffi.register_global_func(_CALLBACK, compiled, override=True)
    try:
        yield
    finally:
        if original is not None:
            _tvm.tvm_ffi.register_global_func(_CALLBACK, original, override=True)


def cuda_source(executable: Any) -> str:
    """Return the CUDA source of an executable, empty if it has none.

    Args:
        executable: An Executable, or a runnable module made from one.
    """
    pending, source = [getattr(executable, "mod", executable)], ""
    while pending:
        module = pending.pop()
        source += module.inspect_source() if module.kind == "cuda" else ""
        pending.extend(module.imports)
    return source
