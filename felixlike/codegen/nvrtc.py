"""Call NVIDIA's compiler library without any Python package. It needs no GPU.

Input: CUDA source. Output: a cubin. The library comes with `felixlike[cuda]`, with PyTorch's CUDA builds, which depend
on the package nvidia-cuda-nvrtc, or with a CUDA toolkit. The functions used (nvrtc.h) have not changed since CUDA 11.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from felixlike.errors import CompilationFailed, first_line

_MAJORS = (13, 12)
"""Supported major versions of CUDA, the newest first."""
_PACKAGES = ("cu13", "cuda_nvrtc")
"""Folders of nvidia/ in site-packages with the library: of CUDA 13, of CUDA 12."""
_HEADER_PACKAGES = ("cu13", "cuda_runtime")
"""Folders of nvidia/ in site-packages with the headers: of CUDA 13, of CUDA 12."""


@cache
def library() -> Any | None:
    """Load the library of the newest CUDA found, or return None."""
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def version() -> str:
    """Return the library's version, as in "13.0", empty if there is none."""
    loaded = library()
    if loaded is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    loaded.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def architectures() -> tuple[str, ...]:
    """Return the architectures that the library compiles for, as "sm_90", or () if there is none."""
    loaded = library()
    count = ctypes.c_int()
    if loaded is None or loaded.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return ()
    numbers = (ctypes.c_int * count.value)()
    loaded.nvrtcGetSupportedArchs(numbers)
    return tuple(f"sm_{number}" for number in numbers)


def _candidates() -> Iterator[str]:
    """Yield files that exist, then names that the system may resolve."""
    files = [f"libnvrtc.so.{major}" for major in _MAJORS]
    folders = [Path(path, "nvidia", package, "lib") for path in sys.path for package in _PACKAGES]
    folders += [root / "lib64" for root in _toolkits()]
    yield from (str(folder / file) for folder in folders for file in files if (folder / file).is_file())
    yield from files


def _toolkits() -> list[Path]:
    """Return folders of CUDA toolkits."""
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [*named, Path("/usr/local/cuda")]


@cache
def header_folder() -> str | None:
    """Return the folder of cuda_fp16.h and similar headers, or None. Only float16 and bfloat16 need them."""
    folders = [Path(path, "nvidia", package, "include") for path in sys.path for package in _HEADER_PACKAGES]
    folders += [root / "include" for root in _toolkits()]
    return next((str(folder) for folder in folders if (folder / "cuda_fp16.h").is_file()), None)


def compiled(source: str, options: list[str]) -> bytes:
    """Compile a source to a cubin. Raises CompilationFailed with the first error. The library must exist."""
    loaded = library()
    assert loaded is not None
    program = ctypes.c_void_p()
    _checked(loaded, loaded.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        option_array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = loaded.nvrtcCompileProgram(program, len(options), option_array)
        if failed:
            log = _text(loaded, program, "ProgramLog")
            raise CompilationFailed(f"NVRTC {version()} failed: {_error(log)}", where="CUDA source")
        return _bytes(loaded, program, "CUBIN")
    finally:
        loaded.nvrtcDestroyProgram(ctypes.byref(program))


def _error(log: str) -> str:
    """Return the first error of a log, which may have warnings before it."""
    lines = [line for line in log.splitlines() if "error" in line.lower()]
    return first_line(ValueError("\n".join(lines) or log))


def _text(loaded: Any, program: Any, what: str) -> str:
    """Return a text of a program, such as its log."""
    return _bytes(loaded, program, what).rstrip(b"\0").decode(errors="replace")


def _bytes(loaded: Any, program: Any, what: str) -> bytes:
    """Return a binary of a program, such as its cubin."""
    size = ctypes.c_size_t()
    _checked(loaded, getattr(loaded, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _checked(loaded, getattr(loaded, f"nvrtcGet{what}")(program, content))
    return content.raw


def _checked(loaded: Any, status: int) -> None:
    """Raise CompilationFailed if a call has failed."""
    if status:
        loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
        message = loaded.nvrtcGetErrorString(status).decode()
        raise CompilationFailed(f"NVRTC failed: {message}", where="CUDA source", remedy="run `felixlike doctor`")
