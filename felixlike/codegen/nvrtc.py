"""NVIDIA's compiler as a library, called without any package of Python's: it needs no GPU.

In: CUDA source. Out: a cubin. The library comes with `felixlike[cuda]`, with PyTorch's builds for CUDA, which bring the
package nvidia-cuda-nvrtc, or with a CUDA toolkit. Few functions of it are used (nvrtc.h), unchanged since CUDA 11.
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
_PACKAGES = ("cu13", "cuda_nvrtc")
"""Folders of nvidia/ in site-packages: of CUDA 13, of CUDA 12."""
_HEADER_PACKAGES = ("cu13", "cuda_runtime")


@cache
def library() -> Any | None:
    """The library of the newest CUDA found, loaded; None where there is none."""
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def version() -> str:
    """As in "13.0"; empty where there is none."""
    found = library()
    if found is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    found.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def architectures() -> tuple[str, ...]:
    """Those that the library compiles for, as "sm_90"; none where there is no library."""
    found = library()
    count = ctypes.c_int()
    if found is None or found.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return ()
    numbers = (ctypes.c_int * count.value)()
    found.nvrtcGetSupportedArchs(numbers)
    return tuple(f"sm_{number}" for number in numbers)


def _candidates() -> Iterator[str]:
    """Files that exist, then names that the system may know."""
    files = [f"libnvrtc.so.{major}" for major in _MAJORS]
    folders = [Path(path, "nvidia", package, "lib") for path in sys.path for package in _PACKAGES]
    folders += [root / "lib64" for root in _toolkits()]
    yield from (str(folder / file) for folder in folders for file in files if (folder / file).is_file())
    yield from files


def _toolkits() -> list[Path]:
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [*named, Path("/usr/local/cuda")]


@cache
def header_folder() -> str | None:
    """Where cuda_fp16.h and the like are; None where they are not. Only half types need them."""
    folders = [Path(path, "nvidia", package, "include") for path in sys.path for package in _HEADER_PACKAGES]
    folders += [root / "include" for root in _toolkits()]
    return next((str(folder) for folder in folders if (folder / "cuda_fp16.h").is_file()), None)


def compiled(source: str, options: list[str]) -> bytes:
    """The cubin of a source.  Raises CompilationFailed with the compiler's first error; the library must be there."""
    found = library()
    assert found is not None
    program = ctypes.c_void_p()
    _checked(found, found.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = found.nvrtcCompileProgram(program, len(options), given)
        if failed:
            said = _text(found, program, "ProgramLog")
            raise CompilationFailed(f"NVRTC {version()} refused it: {_error(said)}", where="CUDA source")
        return _bytes(found, program, "CUBIN")
    finally:
        found.nvrtcDestroyProgram(ctypes.byref(program))


def _error(log: str) -> str:
    """The first error of a log, in which warnings come first as often as not."""
    lines = [line for line in log.splitlines() if "error" in line.lower()]
    return first_line(ValueError("\n".join(lines) or log))


def _text(found: Any, program: Any, what: str) -> str:
    return _bytes(found, program, what).rstrip(b"\0").decode(errors="replace")


def _bytes(found: Any, program: Any, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(found, getattr(found, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _checked(found, getattr(found, f"nvrtcGet{what}")(program, content))
    return content.raw


def _checked(found: Any, status: int) -> None:
    if status:
        found.nvrtcGetErrorString.restype = ctypes.c_char_p
        said = found.nvrtcGetErrorString(status).decode()
        raise CompilationFailed(f"NVRTC failed: {said}", where="CUDA source", remedy="run `felixlike doctor`")
