"""Names of targets → TVM targets that say everything TVM's rules ask for (num-cores, mcpu)."""

from typing import Any

from felixlike.errors import UnknownTarget
from felixlike.hardware.probe import host_device

Target = Any
"""A TVM target (TVM has no static types)."""

_NAMES = ("cpu", "llvm")


def resolve_target(target: "str | Target") -> Target:
    """A TVM target for a name ("cpu", "llvm": the host) or a TVM target that is complete already.

    Raises UnknownTarget for other names, and for targets that lack what TVM's rules need."""
    from felixlike import tvmlib

    if isinstance(target, tvmlib.Target):
        if target.kind.name == "llvm" and "num-cores" not in target.attrs:
            raise UnknownTarget(
                f"the llvm target {target} has no num-cores",
                where="target",
                remedy='say how many cores to use: Target({"kind": "llvm", "mcpu": …, "num-cores": 4})',
            )
        if target.kind.name != "llvm":
            raise UnknownTarget(
                f"targets of kind {target.kind.name!r} cannot be tuned yet",
                where="target",
                remedy='use "cpu"',
            )
        return target
    if target not in _NAMES:
        raise UnknownTarget(
            f"{target!r} is not a known target", where="target", remedy=f"use one of {', '.join(_NAMES)}"
        )
    device = host_device()
    return tvmlib.Target({"kind": "llvm", "mcpu": device.mcpu, "num-cores": device.cores})
