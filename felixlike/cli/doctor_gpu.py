"""Check GPUs for `felixlike doctor`: the driver, the GPUs, and the compiler for them.

felixlike works on the CPU without a GPU, so no finding here is fatal.
"""

from __future__ import annotations

from collections.abc import Iterator

from felixlike.cli.finding import Finding
from felixlike.codegen import cuda_toolchain, nvrtc
from felixlike.hardware import gpu_at_hand
from felixlike.hardware.driver import Driver, driver

_INSTALL = 'pip install "felixlike[cuda]"'
"""Command that installs the packages for CUDA."""


def examine_gpu() -> Iterator[Finding]:
    """Check the driver and its GPUs, and the compiler if there are GPUs or it is installed."""
    cuda_driver = driver()
    yield _gpus(cuda_driver)
    if cuda_driver.gpus or cuda_toolchain():
        yield _compiler(cuda_driver)


def _gpus(cuda_driver: Driver) -> Finding:
    """Check the driver and list its GPUs."""
    if not cuda_driver.version:
        return Finding("GPU", "none: no NVIDIA driver was found; the target is the CPU")
    value = f"driver for CUDA up to {cuda_driver.version}"
    if cuda_driver.problem:
        remedy = "Check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the container has access to a GPU."
        return Finding("GPU", value, cuda_driver.problem, remedy, fatal=False)
    if not cuda_driver.gpus:
        return Finding("GPU", value, "the driver found no GPU", "Check CUDA_VISIBLE_DEVICES.", fatal=False)
    return Finding("GPU", ", ".join(f"{name} ({arch})" for name, arch in cuda_driver.gpus) + f"; {value}")


def seen_by_tvm() -> Iterator[Finding]:
    """Check that TVM, once loaded, sees the GPU of the driver. Yield nothing without a GPU."""
    cuda_driver = driver()
    if cuda_driver.gpus:
        gpu, wrong = gpu_at_hand(), "its CUDA runtime does not load, so nothing can be tuned on the GPU"
        remedy = "Run ldd on tvm/lib/libtvm_runtime_cuda.so to see what is missing; it needs CUDA 13's libcudart."
        value = f"TVM sees {gpu[0]}" if gpu else "TVM sees none"
        yield Finding("GPU of TVM", value, "" if gpu else wrong, "" if gpu else remedy, fatal=False)


def _compiler(cuda_driver: Driver) -> Finding:
    """Check the compiler for the first GPU, which is the one that felixlike uses."""
    name, kind = "CUDA compiler", cuda_toolchain()
    if not kind:
        wrong = "neither NVRTC nor nvcc was found, so nothing can be tuned on the GPU"
        return Finding(name, "none", wrong, f"{_INSTALL}, or put nvcc into PATH.", fatal=False)
    if kind == "nvcc":
        return Finding(
            name,
            "nvcc",
            "compiling a candidate takes seconds",
            f"Install NVRTC, which is faster: {_INSTALL}.",
            fatal=False,
        )
    value = f"NVRTC {nvrtc.version()}"
    arch = cuda_driver.gpus[0][1] if cuda_driver.gpus else ""
    if arch and nvrtc.architectures() and arch not in nvrtc.architectures():
        newest = nvrtc.architectures()[-1]
        wrong = f"it does not support {arch}, only architectures up to {newest}"
        return Finding(name, value, wrong, f"Install a newer version: {_INSTALL} --upgrade.", fatal=False)
    if cuda_driver.version and _major(nvrtc.version()) > _major(cuda_driver.version):
        wrong = f"the driver supports CUDA up to {cuda_driver.version} and may reject code of a newer compiler"
        return Finding(name, value, wrong, "Install a newer driver, or an older nvidia-cuda-nvrtc.", fatal=False)
    if nvrtc.header_folder() is None:
        wrong = "float16 and bfloat16 cannot be compiled without cuda_fp16.h"
        return Finding(name, value, wrong, f"{_INSTALL}, or set CUDA_HOME.", fatal=False)
    return Finding(name, value)


def _major(version: str) -> int:
    """Return the major number of a version."""
    return int(version.partition(".")[0])
