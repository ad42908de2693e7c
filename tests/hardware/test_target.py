"""Targets: names, complete TVM targets, and what is refused."""

from __future__ import annotations

import pytest

from felixlike import tvmlib
from felixlike.errors import UnknownTarget
from felixlike.hardware import host_device, resolve_target


@pytest.mark.parametrize("name", ["cpu", "llvm"])
def test_names_mean_the_host(name: str) -> None:
    target = resolve_target(name)
    assert target.kind.name == "llvm"
    assert int(target.attrs["num-cores"]) == host_device().cores
    assert target.attrs["mcpu"] == host_device().mcpu


def test_a_complete_target_is_taken_as_it_is() -> None:
    target = tvmlib.Target({"kind": "llvm", "num-cores": 3})
    assert resolve_target(target) is target


@pytest.mark.parametrize(("name", "arch"), [("cuda", "sm_90"), ("sm_80", "sm_80")])
def test_gpus_have_the_limits_that_rules_ask_for(name: str, arch: str) -> None:
    target = resolve_target(name)
    assert target.kind.name == "cuda"
    assert target.attrs["arch"] == arch
    assert int(target.attrs["max_threads_per_block"]) == 1024


def test_incomplete_and_unknown_targets_are_refused() -> None:
    with pytest.raises(UnknownTarget, match=r"'tpu' is not a known target. use one of cpu, llvm"):
        resolve_target("tpu")
    with pytest.raises(UnknownTarget, match="has no num-cores"):
        resolve_target(tvmlib.Target({"kind": "llvm"}))
    with pytest.raises(UnknownTarget, match="targets of kind 'c' are not known"):
        resolve_target(tvmlib.Target({"kind": "c"}))
    with pytest.raises(UnknownTarget, match="3 is not a known target"):
        resolve_target(3)
