"""Results and errors of the CUDA driver, tested with stand-ins for its library."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from felixlike.errors import (
    FelixlikeError,
    GPUFailed,
    GPUOutOfMemory,
    KernelOverLimits,
    NoGPU,
    UnknownTarget,
    WrongArchitecture,
)
from felixlike.hardware import gpu, resolve_target
from felixlike.hardware.driver import Driver, driver
from felixlike.hardware.faults import fault_of


class Library:
    """A stand-in for libcuda with one GPU."""

    def __init__(self, failed: int = 0) -> None:
        self._failed = failed

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802
        return self._put(number, 12040)

    def cuInit(self, _: int) -> int:  # noqa: N802
        return self._failed

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802
        return self._put(number, 1)

    def cuDeviceGet(self, number: Any, index: int) -> int:  # noqa: N802
        return self._put(number, index)

    def cuDeviceGetName(self, name: Any, length: int, _: Any) -> int:  # noqa: N802
        assert length == 128
        name.value = b"NVIDIA H100"
        return 0

    def cuDeviceGetAttribute(self, number: Any, attribute: int, _: Any) -> int:  # noqa: N802
        return self._put(number, {75: 9, 76: 0}[attribute])

    @staticmethod
    def _put(number: Any, value: int) -> int:
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver() == Driver("", (), "")


def test_a_driver_with_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    assert driver() == Driver("12.4", (("NVIDIA H100", "sm_90"),), "")


@pytest.mark.parametrize(("failed", "words"), [(100, "no GPU"), (803, "kernel module"), (999, "error 999")])
def test_a_driver_that_fails_to_start_is_reported(failed: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library(failed))
    assert driver().version == "12.4"
    assert words in driver().problem


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Driver(), "there is no NVIDIA driver"),
        (Driver("13.0", (), "the driver finds no GPU"), "the driver finds no GPU"),
        (Driver("13.0", (("NVIDIA H100", "sm_90"),)), "TVM does not detect it"),
    ],
)
def test_a_missing_gpu_is_reported_with_its_cause(found: Driver, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu_at_hand", lambda: None)
    monkeypatch.setattr(gpu, "driver", lambda: found)
    with pytest.raises(NoGPU, match=rf"\({words}\)") as caught:
        gpu.require_gpu(resolve_target("sm_90"))
    assert isinstance(caught.value, UnknownTarget)


def test_a_gpu_of_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu_at_hand", lambda: ("NVIDIA A100", "sm_80"))
    with pytest.raises(WrongArchitecture, match=r"sm_90.* NVIDIA A100 .*sm_80"):
        gpu.require_gpu(resolve_target("sm_90"))


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("CUDAError: cuModuleLoadData(&m, d) failed with error: CUDA_ERROR_NO_BINARY_FOR_GPU", WrongArchitecture, ""),
        ("CUDA: out of memory", GPUOutOfMemory, "nvidia-smi"),
        ("cuMemAlloc failed with error: CUDA_ERROR_OUT_OF_MEMORY", GPUOutOfMemory, "smaller batch"),
        ("CUDALaunch Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\n grid=(1,1,1)", KernelOverLimits, "registers"),
        ("too many resources requested for launch", KernelOverLimits, "registers"),
        ("Failed to set the allowed dynamic shared memory size to 99999", KernelOverLimits, "shared memory"),
        ("CUDA_ERROR_LAUNCH_TIMEOUT", GPUFailed, "ran too long"),
        ("CUDA_ERROR_NOT_INITIALIZED", GPUFailed, "forked"),
        ("an illegal memory access was encountered", GPUFailed, "CUDA_LAUNCH_BLOCKING"),
        ("CUDA_ERROR_NO_DEVICE", NoGPU, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_cuda_errors_are_translated(said: str, kind: type[FelixlikeError], words: str) -> None:
    error = fault_of(RuntimeError(said), where="a model")
    assert type(error) is kind
    assert words in str(error)
    assert str(error).startswith("a model: ")
    assert error is not None
    assert error.remedy


def test_other_errors_are_not_translated() -> None:
    assert fault_of("expected a tensor of 4 dimensions", where="a model") is None
