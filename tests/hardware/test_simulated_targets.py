"""Simulated devices: their names, and how they differ from real devices."""

from __future__ import annotations

import pytest

from felixlike import _tvm
from felixlike.errors import UnknownTarget
from felixlike.hardware import (
    SIMULATED,
    SIMULATED_NAMES,
    described,
    device_name,
    host_cpu,
    host_device,
    host_target,
    is_simulated_device,
    require_real,
    require_runnable,
    resolve_target,
    simulated,
    target_device,
)


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_simulated_targets_are_recognized(name: str) -> None:
    target = resolve_target(name)
    device = simulated(_tvm.Target(str(target)))  # also after a round trip through text
    assert device is not None
    assert device.name in (name.removeprefix("simulated:"), "zen5")
    assert device_name(target) == device.device == f"simulated {device.stands_for}"
    assert is_simulated_device(device_name(target))
    assert str(resolve_target(target)) == str(target)


def test_simulated_targets_have_the_device_of_their_machine() -> None:
    device = target_device(resolve_target("simulated:emerald-rapids"))
    machine = described("emerald-rapids")
    assert (device.name, device.mcpu, device.l2_bytes) == (machine.name, machine.mcpu, machine.l2_bytes)
    assert device.cores == 1
    assert target_device(resolve_target("simulated:h100")) == target_device(resolve_target("sm_90"))
    assert str(resolve_target("simulated:cpu")) == str(resolve_target("simulated:zen5"))
    assert resolve_target("simulated:cpu").attrs["mcpu"] == host_cpu()


def test_real_targets_are_not_simulated() -> None:
    for target in (host_target(), resolve_target("sm_90")):
        assert simulated(target) is None
        assert require_real(target, where="here") is target
        require_runnable(target)
    assert not is_simulated_device(device_name(host_target()))
    assert not any(device.stands_for.startswith("simulated") for device in SIMULATED.values())


def test_unsupported_uses_of_simulated_targets_are_refused() -> None:
    require_runnable(resolve_target("simulated:cpu"))
    with pytest.raises(UnknownTarget, match="compiled for simulated NVIDIA H100"):
        require_runnable(resolve_target("simulated:h100"))
    other = {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
    if "neon" in _tvm.host_features():
        other = {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}
    with pytest.raises(UnknownTarget, match=rf"\({host_device().mcpu}\) lacks .*{other['mcpu']}"):
        require_runnable(_tvm.Target({"kind": "llvm", "num-cores": 1, "model": "simulated:zen5", **other}))
    with pytest.raises(UnknownTarget, match=r"here: .*measure on simulated NVIDIA H100"):
        require_real(resolve_target("simulated:h100"), where="here")
    with pytest.raises(UnknownTarget, match=r"'simulated:h10'.*'simulated:h100'"):
        resolve_target("simulated:h10")
