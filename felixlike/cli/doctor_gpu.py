"""What `felixlike doctor` says of GPUs: the driver, the GPUs, and what compiles code for them.

None of it keeps felixlike from working on the CPU, so nothing here is fatal.
"""

from __future__ import annotations

from collections.abc import Iterator

from felixlike.cli.finding import Finding
from felixlike.codegen import cuda_toolchain, nvrtc
from felixlike.hardware import gpu_at_hand
from felixlike.hardware.driver import Driver, driver

_INSTALL = 'pip install "felixlike[cuda]"'


def examine_gpu() -> Iterator[Finding]:
    """The driver and its GPUs; the compiler, if there are any GPUs or it is installed."""
    found = driver()
    yield _gpus(found)
    if found.gpus or cuda_toolchain():
        yield _compiler(found)


def _gpus(found: Driver) -> Finding:
    if not found.version:
        return Finding("GPU", "none: there is no NVIDIA driver; the CPU is the target")
    value = f"driver for CUDA up to {found.version}"
    if found.problem:
        remedy = "See nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the container was given a GPU."
        return Finding("GPU", value, found.problem, remedy, fatal=False)
    if not found.gpus:
        return Finding("GPU", value, "it has none", "See CUDA_VISIBLE_DEVICES.", fatal=False)
    return Finding("GPU", ", ".join(f"{name} ({arch})" for name, arch in found.gpus) + f"; {value}")


def seen_by_tvm() -> Iterator[Finding]:
    """Whether TVM, once it is loaded, sees the GPU that the driver has; nothing where there is none."""
    found = driver()
    if found.gpus:
        seen, wrong = gpu_at_hand(), "its CUDA runtime does not load, so nothing can be tuned on the GPU"
        remedy = "See what is missing: ldd on tvm/lib/libtvm_runtime_cuda.so; it needs CUDA 13's libcudart."
        value = f"TVM sees {seen[0]}" if seen else "TVM sees none"
        yield Finding("GPU of TVM", value, "" if seen else wrong, "" if seen else remedy, fatal=False)


def _compiler(found: Driver) -> Finding:
    """What compiles for the first GPU, which is the one that is used."""
    name, kind = "CUDA compiler", cuda_toolchain()
    if not kind:
        wrong = "neither NVRTC nor nvcc is there, so nothing can be tuned on the GPU"
        return Finding(name, "none", wrong, f"{_INSTALL}, or put nvcc into PATH.", fatal=False)
    if kind == "nvcc":
        return Finding(name, "nvcc", "each candidate takes seconds", f"NVRTC is quicker: {_INSTALL}.", fatal=False)
    value = f"NVRTC {nvrtc.version()}"
    arch = found.gpus[0][1] if found.gpus else ""
    if arch and nvrtc.architectures() and arch not in nvrtc.architectures():
        newest = nvrtc.architectures()[-1]
        wrong = f"it knows no {arch}, only up to {newest}"
        return Finding(name, value, wrong, f"Install a newer one: {_INSTALL} --upgrade.", fatal=False)
    if found.version and _major(nvrtc.version()) > _major(found.version):
        wrong = f"the driver knows CUDA up to {found.version}, and may refuse what a newer compiler makes"
        return Finding(name, value, wrong, "Install a newer driver, or an older nvidia-cuda-nvrtc.", fatal=False)
    if nvrtc.header_folder() is None:
        wrong = "float16 and bfloat16 cannot be compiled without cuda_fp16.h"
        return Finding(name, value, wrong, f"{_INSTALL}, or set CUDA_HOME.", fatal=False)
    return Finding(name, value)


def _major(version: str) -> int:
    return int(version.partition(".")[0])
