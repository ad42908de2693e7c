"""Simulated devices: what measures on them is a surrogate fitted to measurements of real ones.

In: a name as "simulated:h100". Out: which real device it stands for, and how it is told from it. A TVM target of one
says so in its attribute `model`, so tasks, records and reports of it never pass for those of the real device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import UnknownTarget

PREFIX = "simulated:"
"""Of targets by name, and of the attribute `model` of their TVM targets."""

_DEVICE_PREFIX = "simulated "


@dataclass(frozen=True, slots=True)
class Simulated:
    """name: after the prefix.  kind: TVM's of its target.  machine: the described machine that schedules are for; of a
    GPU its architecture.  stands_for: the device whose measurements it answers with, for people."""

    name: str
    kind: str
    machine: str
    stands_for: str

    @property
    def device(self) -> str:
        """As records and reports name it."""
        return _DEVICE_PREFIX + self.stands_for


SIMULATED = {
    found.name: found
    for found in (
        Simulated("zen5", "llvm", "zen5", "AMD EPYC (Zen 5, one core)"),
        Simulated("emerald-rapids", "llvm", "emerald-rapids", "Intel Xeon (Emerald Rapids, one core)"),
        Simulated("h100", "cuda", "sm_90", "NVIDIA H100"),
    )
}
"""By name; `data/` has the measurements."""

_ALSO = {"cpu": "zen5"}
"""Other names."""

SIMULATED_NAMES = (*(PREFIX + name for name in _ALSO), *(PREFIX + name for name in SIMULATED))
"""What users may write for a target."""


def simulated_by_name(target: str) -> Simulated | None:
    """The device that the name of a target stands for; None where it is none of these names."""
    if target not in SIMULATED_NAMES:
        return None
    name = target.removeprefix(PREFIX)
    return SIMULATED[_ALSO.get(name, name)]


def simulated(target: Any) -> Simulated | None:
    """The simulated device that a TVM target is for; None for real ones."""
    return simulated_by_name(str(target.attrs.get("model", "")))


def is_simulated_device(device: str) -> bool:
    """Whether a record's device is a simulated one."""
    return device.startswith(_DEVICE_PREFIX)


def require_real(target: Any, *, where: str) -> Any:
    """A TVM target of a real device. Raises UnknownTarget for a simulated one, whose name must not be given to what was
    measured."""
    device = simulated(target)
    if device is not None:
        raise UnknownTarget(
            f"{device.device} is simulated: it has no processor to measure on",
            where=where,
            remedy="use measure.SimulatedPool, or the target of a real device",
        )
    return target
