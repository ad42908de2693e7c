"""Names of targets → TVM targets that say everything TVM's rules ask for (num-cores, mcpu), and their devices."""

from typing import Any

from felixlike.errors import UnknownTarget
from felixlike.hardware.device import Device
from felixlike.hardware.gpu import gpu_at_hand, gpu_device, require_gpu
from felixlike.hardware.probe import host_device

Target = Any
"""A TVM target (TVM has no static types)."""

_CPU = ("cpu", "llvm")
_CUDA = ("cuda", "sm_80", "sm_90")
_NO_GPU = "sm_90"
_NEEDED = {
    "llvm": ("num-cores",),
    "cuda": ("arch", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"),
}
"""What TVM's rules for a kind of target read from it."""


def resolve_target(target: "str | Target") -> Target:
    """A TVM target for a name or a TVM target that is complete already.

    Names: "cpu" or "llvm", the host; "sm_80", "sm_90", a GPU with the limits every CUDA kernel keeps to; "cuda", the
    GPU of this machine, sm_90 where there is none.
    Raises UnknownTarget for other names, and for targets that lack what TVM's rules need."""
    from felixlike import tvmlib

    if isinstance(target, tvmlib.Target):
        kind = str(target.kind.name)
        if kind not in _NEEDED:
            raise UnknownTarget(f"targets of kind {kind!r} are not known", where="target", remedy='use "cpu" or "cuda"')
        missing = [name for name in _NEEDED[kind] if name not in target.attrs]
        if missing:
            raise UnknownTarget(
                f"the {kind} target {target} has no {', '.join(missing)}",
                where="target",
                remedy='say it, as in Target({"kind": "llvm", "num-cores": 4}), or use "cpu" or "cuda"',
            )
        return target
    if target in _CUDA:
        found = gpu_at_hand() if target == "cuda" else None
        arch = target if target != "cuda" else found[1] if found else _NO_GPU
        return tvmlib.Target(
            {
                "kind": "cuda",
                "arch": arch,
                "max_threads_per_block": 1024,
                "max_shared_memory_per_block": 49152,
                "thread_warp_size": 32,
            }
        )
    if target not in _CPU:
        raise UnknownTarget(
            f"{target!r} is not a known target", where="target", remedy=f"use one of {', '.join((*_CPU, *_CUDA))}"
        )
    return host_target()


def host_target() -> Target:
    """The CPU this process runs on."""
    from felixlike import tvmlib

    device = host_device()
    return tvmlib.Target({"kind": "llvm", "mcpu": device.mcpu, "num-cores": device.cores})


def target_device(target: Target) -> Device:
    """What schedules for a target may rely on: the host, or a GPU of the target's architecture."""
    return gpu_device(target) if target.kind.name == "cuda" else host_device()


def device_name(target: Target) -> str:
    """The name of the device that candidates for a target are measured on.  Raises UnknownTarget without such a GPU."""
    return require_gpu(target) if target.kind.name == "cuda" else host_device().name
