"""Resolve names of targets to complete TVM targets (with num-cores, mcpu), and targets to devices."""

from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._util.wording import advice, choose_from, shown
from felixlike.errors import UnknownTarget
from felixlike.hardware.device import Device
from felixlike.hardware.gpu import MODEL, gpu_at_hand, gpu_device, require_gpu
from felixlike.hardware.instructions import host_cpu, instruction_sets
from felixlike.hardware.kinds import kind_of
from felixlike.hardware.precision import (
    PAIRS_PRECISION,
    TILES_PRECISION,
    checked_precision,
    has_pairs,
    has_tiles,
    precision_of,
)
from felixlike.hardware.presets import described, gpus, imitated, machines, with_processor
from felixlike.hardware.probe import host_device
from felixlike.hardware.simulated import PREFIX, SIMULATED_NAMES, Simulated, simulated, simulated_by_name
from felixlike.hardware.vectors import vector_unit

Target = Any
"""A TVM target. TVM has no static types."""

_CPU = ("cpu", "llvm")
"""Names of the host."""
_CUDA = ("cuda", *dict.fromkeys(device.mcpu for device in gpus().values()))
"""Names of GPUs by architecture."""
_NO_GPU = "sm_90"
"""The architecture of "cuda" on a machine without a GPU."""


def resolve_target(target: "str | Target") -> Target:
    """Resolve a name to a TVM target, or check that a TVM target is complete.

    Args:
        target: A complete TVM target, or one of these names: "cpu" or "llvm" for the host; "sm_80", "sm_90" and other
            architectures for a GPU, with limits that every GPU has; "a10g", "rtx-a5000" and others for a described GPU
            (docs/gpu.md); "cuda" for this machine's GPU, sm_90 if there is none; "simulated:h100", "simulated:cpu" and
            others for simulated devices (docs/simulated.md).

    Returns:
        The TVM target.

    Raises:
        UnknownTarget: If the name is unknown, or the target lacks attributes that TVM's rules need.

    Example:
        >>> resolve_target("cpu").kind.name
        'llvm'
    """
    if isinstance(target, _tvm.Target):
        kind = kind_of(target)
        missing = [name for name in kind.needs if name not in target.attrs]
        if missing:
            raise UnknownTarget(
                f"the {kind.name} target {target} has no {', '.join(missing)}",
                where="target",
                remedy='add it, as in Target({"kind": "llvm", "num-cores": 4}), or use "cpu" or "cuda"',
            )
        if kind.on_host:
            _check_cpu(target)
        return checked_precision(target)
    if not isinstance(target, str):
        raise UnknownTarget(f"{shown(target)} is not a target", where="target", remedy=_remedy(target))
    simulated_device = simulated_by_name(target)
    if simulated_device is not None:
        return _simulated_target(simulated_device)
    if target in _CUDA:
        gpu = gpu_at_hand() if target == "cuda" else None
        return _cuda_target(target if target != "cuda" else gpu[1] if gpu else _NO_GPU)
    if target in gpus():
        return described_target(target)
    if target not in _CPU:
        raise UnknownTarget(f"{shown(target)} is not a known target", where="target", remedy=_remedy(target))
    return host_target()


def _cuda_target(arch: str, **more: str) -> Target:
    """Return a CUDA target with limits that every GPU has."""
    return _tvm.Target(
        {
            "kind": "cuda",
            "arch": arch,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
            **more,
        }
    )


def _simulated_target(device: Simulated) -> Target:
    """Return a target for a simulated device's schedules.

    Code for a CPU is generated for the host, as in `imitated_target`. Its measurements were made on one core.
    """
    model = PREFIX + device.name
    if device.kind == "cuda":
        return _cuda_target(device.machine, **{MODEL: model})
    return _tvm.Target({"kind": "llvm", "mcpu": host_cpu(), "num-cores": 1, MODEL: model})


def _check_cpu(target: Target) -> None:
    """Raise UnknownTarget if LLVM does not know the processor, or the target has no cores."""
    name, cores = str(target.attrs.get("mcpu", "")), int(target.attrs["num-cores"])
    if name and not _tvm.knows_cpu(name, str(target.attrs.get("mtriple", ""))):
        raise UnknownTarget(
            f"LLVM {_tvm.llvm_version()} does not know a processor {name!r}",
            where="target",
            remedy=f'use LLVM\'s name of the processor, or "cpu" for this one ({host_cpu()})',
        )
    if cores < 1:
        raise UnknownTarget(
            f"expected num-cores to be at least 1, got {cores}", where="target", remedy="set the number of cores to use"
        )


def _remedy(target: Any) -> str:
    """Return what to do about an invalid target."""
    if isinstance(target, dict) or (isinstance(target, str) and target.startswith("llvm ")):
        return 'give a complete TVM target: Target({"kind": "llvm", "mcpu": …, "num-cores": …}), or "cpu"'
    return choose_from(target, (*_CPU, *_CUDA, *gpus(), *SIMULATED_NAMES)) + advice(", or a TVM target", "")


def host_target() -> Target:
    """Return the target of the CPU that this process runs on.

    It names the described machine that is imitated, if any (`FELIXLIKE_DEVICE`).

    Raises:
        UnknownTarget: If the machine to be imitated is not described.
    """
    device, machine = host_device(), imitated()
    model = {} if machine is None else {MODEL: machine[0]}
    return _tvm.Target({"kind": "llvm", "mcpu": device.mcpu, "num-cores": device.cores, **model})


def quickly_compiled(target: Target, *, vectorized: bool = False) -> Target:
    """Return a CPU target whose code compiles in a third of the time and computes the same results.

    LLVM then unrolls plain loops less.

    Args:
        target: A CPU target.
        vectorized: Whether LLVM vectorizes plain loops. Products of matrices then take a quarter of the time.
    """
    return _tvm.Target({**target.export(), "opt-level": 2 if vectorized else 1})


def described_target(name: str, *, cores: int | None = None) -> Target:
    """Return a target for a described machine or GPU: schedules and code are made for it.

    Args:
        name: Name of an entry in `machines.toml`.
        cores: Number of cores instead of the described one. It has no effect on GPUs.

    Raises:
        UnknownTarget: If no machine or GPU has this name.
    """
    device = described(name, cores=cores)
    if device.kind == "cuda":
        return _cuda_target(device.mcpu, **{MODEL: name})
    return _tvm.Target({"kind": "llvm", "mtriple": device.triple, "mcpu": device.mcpu, "num-cores": device.cores})


def imitated_target(name: str, *, cores: int | None = None) -> Target:
    """Return a target with schedules for a described machine and code for the host, whatever vectors the host has.

    Args:
        name: Name of an entry in `machines.toml`.
        cores: Number of cores instead of the described one.

    Raises:
        UnknownTarget: If no machine has this name.
    """
    device = described(name, cores=cores)
    if device.kind == "cuda":
        raise UnknownTarget(
            f"{name} is a GPU, which a CPU cannot imitate", where="machine", remedy=f'use target "{name}"'
        )
    return _tvm.Target({"kind": "llvm", "mcpu": host_cpu(), "num-cores": device.cores, MODEL: name})


def target_device(target: Target) -> Device:
    """Return the device that schedules for a target may rely on.

    For a GPU, this is the described GPU that the target names, or its architecture. For a CPU, the vector registers are
    those that LLVM lists for the processor. The caches are the host's if it has this processor or the target names
    none, else those of the described machine with this processor, else modest defaults. A target that imitates a
    described machine has all of that machine's properties. The number of cores and the precision are always the
    target's.

    Args:
        target: A TVM target.

    Raises:
        UnknownTarget: If the target kind is not supported.
    """
    if not kind_of(target).on_host:
        return gpu_device(target)
    simulated_device, mcpu = simulated(target), str(target.attrs.get("mcpu", ""))
    model = simulated_device.machine if simulated_device is not None else str(target.attrs.get(MODEL, ""))
    if model in machines():
        return _as_in(target, described(model))
    host = host_device()
    base = host if mcpu in ("", host.mcpu) else with_processor(mcpu) or _modest(mcpu)
    unit = vector_unit(_tvm.cpu_features(target))
    base = replace(base, vector_bits=unit.bits, register_bytes=unit.registers * unit.bits // 8)
    return _as_in(target, base)


def _as_in(target: Target, device: Device) -> Device:
    """Return the device with the target's number of cores and precision."""
    cores = int(target.attrs.get("num-cores", device.cores))
    precision = precision_of(target)
    return replace(
        device,
        cores=cores,
        precision=precision.name,
        multiplies_pairs=precision is PAIRS_PRECISION,
        has_pairs=has_pairs(target),
        multiplies_tiles=precision is TILES_PRECISION,
        has_tiles=has_tiles(target),
    )


def _modest(mcpu: str) -> Device:
    """Return a CPU with modest caches, for a processor of which only LLVM's name is known."""
    return Device("cpu", mcpu, mcpu, 1, 128, 256, 32 * 2**10, 512 * 2**10, 0, 2**32)


def device_name(target: Target) -> str:
    """Return the name of the device that candidates for a target are measured on.

    The name of a simulated device begins with "simulated".

    Args:
        target: A TVM target.

    Raises:
        UnknownTarget: If this processor lacks instructions that the target's code may use. They would end the process.
        NoGPU: If this machine has no GPU.
        WrongArchitecture: If this machine's GPU has another architecture.
    """
    simulated_device = simulated(target)
    if simulated_device is not None:
        return simulated_device.device
    if not kind_of(target).on_host:
        return require_gpu(target)
    _require_cpu(target)
    return host_device().name


def require_runnable(target: Target) -> None:
    """Check that this machine can run code compiled for a simulated device.

    Args:
        target: A TVM target. Targets of real devices pass.

    Raises:
        UnknownTarget: If the simulated device is a GPU, or the code is for another processor.
    """
    device = simulated(target)
    if device is None:
        return
    if not kind_of(target).on_host:
        raise UnknownTarget(
            f"code that is compiled for {device.device} cannot run on this machine",
            where="target",
            remedy='search on it with measure.SimulatedPool (docs/simulated.md), or use "simulated:cpu"',
        )
    _require_cpu(target)


def _require_cpu(target: Target) -> None:
    """Raise UnknownTarget if the host lacks instruction sets that the target's code may use."""
    host, name = host_device(), str(target.attrs.get("mcpu", ""))
    if name == host.mcpu:  # LLVM's list for this name may include what a hypervisor hides
        return
    missing = sorted(instruction_sets(_tvm.cpu_features(target)) - _tvm.host_features())
    if missing:
        raise UnknownTarget(
            f"this processor ({host.mcpu}) lacks {', '.join(missing)}, which code for {name or 'it'} may use",
            where="target",
            remedy=(
                'use "cpu", or tune on a machine with that processor; felixlike.symbolic and felixlike explain support '
                "every processor"
            ),
        )
