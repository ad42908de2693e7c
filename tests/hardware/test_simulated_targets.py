"""Simulated devices by name, and how they are told from real ones."""

from __future__ import annotations

import pytest

from felixlike import _tvm
from felixlike.errors import UnknownTarget
from felixlike.hardware import (
    SIMULATED,
    SIMULATED_NAMES,
    described,
    device_name,
    host_target,
    is_simulated_device,
    require_real,
    require_runnable,
    resolve_target,
    simulated,
    target_device,
)


@pytest.mark.parametrize("name", SIMULATED_NAMES)
def test_a_simulated_target_says_what_it_is(name: str) -> None:
    target = resolve_target(name)
    found = simulated(_tvm.Target(str(target)))  # also after it has been written down
    assert found is not None
    assert found.name in (name.removeprefix("simulated:"), "zen5")
    assert device_name(target) == found.device == f"simulated {found.stands_for}"
    assert is_simulated_device(device_name(target))
    assert str(resolve_target(target)) == str(target)


def test_schedules_are_for_the_machine_that_it_stands_for() -> None:
    device = target_device(resolve_target("simulated:emerald-rapids"))
    machine = described("emerald-rapids")
    assert (device.name, device.mcpu, device.l2_bytes) == (machine.name, machine.mcpu, machine.l2_bytes)
    assert device.cores == 1
    assert target_device(resolve_target("simulated:h100")) == target_device(resolve_target("sm_90"))
    assert str(resolve_target("simulated:cpu")) == str(resolve_target("simulated:zen5"))
    assert resolve_target("simulated:cpu").attrs["mcpu"] == _tvm.host_cpu()


def test_real_targets_are_none_of_them() -> None:
    for target in (host_target(), resolve_target("sm_90")):
        assert simulated(target) is None
        assert require_real(target, where="here") is target
        require_runnable(target)
    assert not is_simulated_device(device_name(host_target()))
    assert not any(found.stands_for.startswith("simulated") for found in SIMULATED.values())


def test_what_they_cannot_do_is_refused() -> None:
    require_runnable(resolve_target("simulated:cpu"))
    with pytest.raises(UnknownTarget, match="NVIDIA H100 is simulated: it measures, but nothing that is compiled"):
        require_runnable(resolve_target("simulated:h100"))
    other = {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
    if "neon" in _tvm.host_features():
        other = {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}
    with pytest.raises(UnknownTarget, match=r"this processor \(.*\) lacks .*, which code for .* may use"):
        require_runnable(_tvm.Target({"kind": "llvm", "num-cores": 1, "model": "simulated:zen5", **other}))
    with pytest.raises(UnknownTarget, match="here: simulated NVIDIA H100 is simulated: it has no processor"):
        require_real(resolve_target("simulated:h100"), where="here")
    with pytest.raises(UnknownTarget, match=r"did you mean 'simulated:h100'\?"):
        resolve_target("simulated:h10")
