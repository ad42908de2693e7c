"""Names of targets → TVM targets that say everything TVM's rules ask for (num-cores, mcpu), and their devices."""

from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._util.wording import advice, choose_from, shown
from felixlike.errors import UnknownTarget
from felixlike.hardware.device import Device
from felixlike.hardware.gpu import gpu_at_hand, gpu_device, require_gpu
from felixlike.hardware.instructions import instruction_sets
from felixlike.hardware.kinds import kind_of
from felixlike.hardware.precision import checked_precision
from felixlike.hardware.presets import described, imitated, machines, with_processor
from felixlike.hardware.probe import host_device
from felixlike.hardware.simulated import PREFIX, SIMULATED_NAMES, Simulated, simulated, simulated_by_name
from felixlike.hardware.vectors import vector_unit

Target = Any
"""A TVM target (TVM has no static types)."""

_CPU = ("cpu", "llvm")
_CUDA = ("cuda", "sm_80", "sm_90")
_NO_GPU = "sm_90"


def resolve_target(target: "str | Target") -> Target:
    """A TVM target for a name or a TVM target that is complete already.

    Names: "cpu" or "llvm", the host; "sm_80", "sm_90", a GPU with the limits every CUDA kernel keeps to; "cuda", the
    GPU of this machine, sm_90 where there is none; "simulated:h100", "simulated:cpu" and the like, see
    docs/simulated.md.
    Raises UnknownTarget for other names, and for targets that lack what TVM's rules need."""
    if isinstance(target, _tvm.Target):
        kind = kind_of(target)
        missing = [name for name in kind.needs if name not in target.attrs]
        if missing:
            raise UnknownTarget(
                f"the {kind.name} target {target} has no {', '.join(missing)}",
                where="target",
                remedy='say it, as in Target({"kind": "llvm", "num-cores": 4}), or use "cpu" or "cuda"',
            )
        if kind.on_host:
            _check_cpu(target)
        return checked_precision(target)
    if not isinstance(target, str):
        raise UnknownTarget(f"{shown(target)} is not a target", where="target", remedy=_remedy(target))
    imagined = simulated_by_name(target)
    if imagined is not None:
        return _simulated_target(imagined)
    if target in _CUDA:
        found = gpu_at_hand() if target == "cuda" else None
        return _cuda_target(target if target != "cuda" else found[1] if found else _NO_GPU)
    if target not in _CPU:
        raise UnknownTarget(f"{shown(target)} is not a known target", where="target", remedy=_remedy(target))
    return host_target()


def _cuda_target(arch: str, **more: str) -> Target:
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
    """A simulated device's schedules; code of a CPU's for the CPU this process runs on, as `imitated_target`. Its
    measurements were made on one core."""
    model = PREFIX + device.name
    if device.kind == "cuda":
        return _cuda_target(device.machine, **{_MODEL: model})
    return _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": 1, _MODEL: model})


def _check_cpu(target: Target) -> None:
    """Raise UnknownTarget for a processor that LLVM does not know, and for one without cores."""
    name, cores = str(target.attrs.get("mcpu", "")), int(target.attrs["num-cores"])
    if name and not _tvm.knows_cpu(name, str(target.attrs.get("mtriple", ""))):
        raise UnknownTarget(
            f"LLVM {_tvm.llvm_version()} knows no processor {name!r}",
            where="target",
            remedy=f'use LLVM\'s name of it, or "cpu" for this one ({_tvm.host_cpu()})',
        )
    if cores < 1:
        raise UnknownTarget(f"num-cores is {cores}", where="target", remedy="give at least 1")


def _remedy(target: Any) -> str:
    if isinstance(target, dict) or (isinstance(target, str) and target.startswith("llvm ")):
        return 'give a TVM target that says everything: Target({"kind": "llvm", "mcpu": …, "num-cores": …}), or "cpu"'
    return choose_from(target, (*_CPU, *_CUDA, *SIMULATED_NAMES)) + advice(", or a TVM target", "")


def host_target() -> Target:
    """The CPU this process runs on; it names the described machine that is imitated, if there is one."""
    device, found = host_device(), imitated()
    model = {} if found is None else {_MODEL: found[0]}
    return _tvm.Target({"kind": "llvm", "mcpu": device.mcpu, "num-cores": device.cores, **model})


def quickly_compiled(target: Target) -> Target:
    """A CPU target whose code is compiled in a third of the time: LLVM neither unrolls nor vectorises plain loops much.
    They compute the same."""
    return _tvm.Target({**target.export(), "opt-level": 1})


def described_target(name: str, *, cores: int | None = None) -> Target:
    """A described machine (`machines.toml`): schedules and code for it.  cores: as many instead of the described ones.
    Raises UnknownTarget."""
    device = described(name, cores=cores)
    return _tvm.Target({"kind": "llvm", "mtriple": device.triple, "mcpu": device.mcpu, "num-cores": device.cores})


def imitated_target(name: str, *, cores: int | None = None) -> Target:
    """A described machine's schedules, and code for the CPU this process runs on, whatever vectors it has.  cores: as
    many instead of the described ones.  Raises UnknownTarget."""
    device = described(name, cores=cores)
    return _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": device.cores, _MODEL: name})


_MODEL = "model"
"""The attribute of a TVM target that names the machine schedules are for, where code is generated for another one."""


def target_device(target: Target) -> Device:
    """What schedules for a target may rely on.

    Of a GPU, its architecture. Of a CPU, the vector registers that LLVM knows under its name, and the caches of this
    machine if that is its processor or the target names none, else those of the described machine with this
    processor, else modest ones. Of a target that imitates a described machine, all of that machine. Cores are always
    the target's."""
    if not kind_of(target).on_host:
        return gpu_device(target)
    imagined, mcpu = simulated(target), str(target.attrs.get("mcpu", ""))
    model = imagined.machine if imagined is not None else str(target.attrs.get(_MODEL, ""))
    if model in machines():
        return _with_cores(described(model), target)
    host = host_device()
    base = host if mcpu in ("", host.mcpu) else with_processor(mcpu) or _modest(mcpu)
    unit = vector_unit(_tvm.cpu_features(target))
    base = replace(base, vector_bits=unit.bits, register_bytes=unit.registers * unit.bits // 8)
    return _with_cores(base, target)


def _with_cores(device: Device, target: Target) -> Device:
    return replace(device, cores=int(target.attrs.get("num-cores", device.cores)))


def _modest(mcpu: str) -> Device:
    """A CPU of which nothing but LLVM's name is known: caches that most have."""
    return Device("cpu", mcpu, mcpu, 1, 128, 256, 32 * 2**10, 512 * 2**10, 0, 2**32)


def device_name(target: Target) -> str:
    """The name of the device that candidates for a target are measured on; of a simulated one it begins with
    "simulated".  Raises UnknownTarget without such a GPU, and where this processor lacks instructions that code for the
    target may use: it would end the process."""
    imagined = simulated(target)
    if imagined is not None:
        return imagined.device
    if not kind_of(target).on_host:
        return require_gpu(target)
    _require_cpu(target)
    return host_device().name


def require_runnable(target: Target) -> None:
    """Raise UnknownTarget for a simulated device if this machine cannot run what is compiled for it: a GPU, and a CPU's
    code for another processor than this one's."""
    device = simulated(target)
    if device is None:
        return
    if not kind_of(target).on_host:
        raise UnknownTarget(
            f"{device.device} is simulated: it measures, but nothing that is compiled for it could be run here",
            where="target",
            remedy='search on it with measure.SimulatedPool (docs/simulated.md), or use "simulated:cpu"',
        )
    _require_cpu(target)


def _require_cpu(target: Target) -> None:
    host, name = host_device(), str(target.attrs.get("mcpu", ""))
    if name == host.mcpu:  # LLVM lists under its name also what a hypervisor may have hidden
        return
    missing = sorted(instruction_sets(_tvm.cpu_features(target)) - _tvm.host_features())
    if missing:
        raise UnknownTarget(
            f"this processor ({host.mcpu}) lacks {', '.join(missing)}, which code for {name or 'it'} may use",
            where="target",
            remedy='use "cpu", or tune on such a machine; felixlike.symbolic and felixlike explain take any processor',
        )
