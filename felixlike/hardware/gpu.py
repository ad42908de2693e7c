"""Describe GPUs: the one in this machine, and architectures of others.

Input: a CUDA target. Output: a `Device`. Schedules depend on the target only, which has an architecture or names a GPU.
Names of real GPUs distinguish measurements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from felixlike import _tvm
from felixlike.errors import NoGPU, WrongArchitecture
from felixlike.hardware.device import Device
from felixlike.hardware.driver import driver
from felixlike.hardware.precision import precision_of
from felixlike.hardware.presets import gpus, with_processor

MODEL = "model"
"""The attribute of a TVM target that names the described machine or GPU of its schedules."""

_UNLISTED = "a100"
"""The GPU that stands for architectures of which none is described."""


def gpu_device(target: Any) -> Device:
    """Return the device that schedules for a CUDA target may rely on.

    It is the described GPU that the target names, or the first one of the target's architecture, whatever GPU is in
    this machine, so formulas are the same on every machine, with the target's precision. Architectures of which no GPU
    is described have the caches of an A100.
    """
    arch = str(target.attrs["arch"])
    device = gpus().get(str(target.attrs.get(MODEL, ""))) or with_processor(arch) or gpus()[_UNLISTED]
    return replace(device, mcpu=arch, precision=precision_of(target).name)


@cache
def gpu_at_hand() -> tuple[str, str] | None:
    """Return (name, architecture) of this machine's first GPU, or None."""
    device = _tvm.tvm.runtime.device("cuda", 0)
    if not device.exist:
        return None
    return str(device.device_name), "sm_" + str(device.compute_version).replace(".", "")


def require_gpu(target: Any) -> str:
    """Return the name of the GPU that runs code for a CUDA target.

    Raises NoGPU if there is none, and WrongArchitecture if it has another architecture.
    """
    gpu, target_arch = gpu_at_hand(), str(target.attrs["arch"])
    if gpu is None:
        nvidia_driver = driver()
        reason = (
            "there is no NVIDIA driver"
            if not nvidia_driver.version
            else nvidia_driver.problem or "TVM does not detect it"
        )
        raise NoGPU(
            f"no GPU was found on this machine ({reason}), so CUDA code can be inspected, but not tuned",
            where="target",
            remedy='use "cpu", or run `felixlike doctor`; felixlike.symbolic and felixlike explain need no GPU',
        )
    name, gpu_arch = gpu
    if gpu_arch != target_arch:
        raise WrongArchitecture(
            f"the target is for {target_arch}, but this machine's {name} is {gpu_arch}",
            where="target",
            remedy=f'use "{gpu_arch}"',
        )
    return name
