"""Describe simulated devices, on which a surrogate fitted to measurements of a real device measures.

Input: a name such as "simulated:h100". Output: the real device that it stands for. The attribute `model` of a TVM
target marks a simulated device, so its tasks, records and reports are never mixed up with those of the real device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import UnknownTarget

PREFIX = "simulated:"
"""Prefix of targets by name, and of the attribute `model` of their TVM targets."""

_DEVICE_PREFIX = "simulated "
"""Prefix of the device's name in records."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated device.

    Attributes:
        name: The name after the prefix.
        kind: TVM's kind of its target.
        machine: The described machine that schedules are for, or a GPU's architecture.
        stands_for: Name, for people, of the device whose measurements it returns.
    """

    name: str
    kind: str
    machine: str
    stands_for: str

    @property
    def device(self) -> str:
        """Return the device's name in records and reports."""
        return _DEVICE_PREFIX + self.stands_for


SIMULATED = {
    device.name: device
    for device in (
        Simulated("zen5", "llvm", "zen5", "AMD EPYC (Zen 5, one core)"),
        Simulated("emerald-rapids", "llvm", "emerald-rapids", "Intel Xeon (Emerald Rapids, one core)"),
        Simulated("h100", "cuda", "sm_90", "NVIDIA H100"),
    )
}
"""Simulated devices by name. `data/` has the measurements."""

_ALSO = {"cpu": "zen5"}
"""Aliases."""

SIMULATED_NAMES = (*(PREFIX + name for name in _ALSO), *(PREFIX + name for name in SIMULATED))
"""Names of simulated targets for users."""


def simulated_by_name(target: str) -> Simulated | None:
    """Return the simulated device that a target's name stands for, or None."""
    if target not in SIMULATED_NAMES:
        return None
    name = target.removeprefix(PREFIX)
    return SIMULATED[_ALSO.get(name, name)]


def simulated(target: Any) -> Simulated | None:
    """Return the simulated device of a TVM target, or None for real ones.

    Args:
        target: A TVM target.
    """
    return simulated_by_name(str(target.attrs.get("model", "")))


def is_simulated_device(device: str) -> bool:
    """Return whether a record's device is a simulated one.

    Args:
        device: The device's name in the record.
    """
    return device.startswith(_DEVICE_PREFIX)


def require_real(target: Any, *, where: str) -> Any:
    """Return a TVM target after checking that its device is real, for measurements that are recorded under its name.

    Args:
        target: A TVM target.
        where: What the error message names as its place.

    Raises:
        UnknownTarget: If the device is simulated.
    """
    device = simulated(target)
    if device is not None:
        raise UnknownTarget(
            f"cannot measure on {device.device}: it has no hardware",
            where=where,
            remedy="use measure.SimulatedPool, or the target of a real device",
        )
    return target
