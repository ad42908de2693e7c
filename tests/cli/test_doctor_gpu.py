"""Tests for the findings of `doctor` about drivers, GPUs and compilers, which are mocked."""

from __future__ import annotations

import pytest

from felixlike.cli import doctor_gpu
from felixlike.cli.finding import Finding
from felixlike.codegen import nvrtc
from felixlike.hardware.driver import Driver

H100 = (("NVIDIA H100", "sm_90"),)


def findings_with(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, *, kind: str = "nvrtc", version: str = "13.0", headers: str = "/h"
) -> list[Finding]:
    monkeypatch.setattr(doctor_gpu, "driver", lambda: driver)
    monkeypatch.setattr(doctor_gpu, "cuda_toolchain", lambda: kind)
    monkeypatch.setattr(nvrtc, "version", lambda: version)
    monkeypatch.setattr(nvrtc, "architectures", lambda: ("sm_80", "sm_90"))
    monkeypatch.setattr(nvrtc, "header_folder", lambda: headers or None)
    return list(doctor_gpu.examine_gpu())


def test_a_machine_without_a_driver_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    (gpu,) = findings_with(monkeypatch, Driver(), kind="")
    assert (gpu.value, gpu.problem) == ("none: there is no NVIDIA driver; the CPU is the target", "")


def test_a_gpu_and_its_compiler_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, compiler = findings_with(monkeypatch, Driver("13.0", H100))
    assert gpu.value == "NVIDIA H100 (sm_90); driver for CUDA up to 13.0"
    assert (compiler.value, compiler.problem) == ("NVRTC 13.0", "")


def test_a_gpu_that_tvm_cannot_use_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "driver", lambda: Driver("13.0", H100))
    monkeypatch.setattr(doctor_gpu, "gpu_at_hand", lambda: None)
    (finding,) = doctor_gpu.seen_by_tvm()
    assert "CUDA runtime does not load" in finding.problem
    assert "libcudart" in finding.remedy
    monkeypatch.setattr(doctor_gpu, "gpu_at_hand", lambda: H100[0])
    (finding,) = doctor_gpu.seen_by_tvm()
    assert (finding.value, finding.problem) == ("TVM sees NVIDIA H100", "")
    monkeypatch.setattr(doctor_gpu, "driver", Driver)
    assert not list(doctor_gpu.seen_by_tvm())


@pytest.mark.parametrize(
    ("driver", "given", "problem", "remedy"),
    [
        (Driver("13.0", (), "the driver finds no GPU"), {}, "the driver finds no GPU", "CUDA_VISIBLE_DEVICES"),
        (Driver("13.0"), {}, "it has none", "CUDA_VISIBLE_DEVICES"),
        (Driver("13.0", H100), {"kind": ""}, "neither NVRTC nor nvcc", r"felixlike[cuda]"),
        (Driver("13.0", H100), {"kind": "nvcc"}, "each candidate takes seconds", "NVRTC is quicker"),
        (Driver("13.0", (("A new one", "sm_130"),)), {}, "it knows no sm_130, only up to sm_90", "--upgrade"),
        (Driver("12.4", H100), {}, "the driver knows CUDA up to 12.4", "newer driver"),
        (Driver("13.0", H100), {"headers": ""}, "cannot be compiled without cuda_fp16.h", "CUDA_HOME"),
    ],
)
def test_each_problem_has_a_remedy_and_is_not_fatal(
    driver: Driver, given: dict[str, str], problem: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problematic,) = [finding for finding in findings_with(monkeypatch, driver, **given) if finding.problem]
    assert problem in problematic.problem
    assert remedy in problematic.remedy
    assert not problematic.fatal
