"""Targets: names, complete TVM targets, and targets that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from felixlike import _tvm
from felixlike.errors import UnknownTarget
from felixlike.hardware import device_name, host_device, host_target, resolve_target


@pytest.mark.parametrize("name", ["cpu", "llvm"])
def test_names_mean_the_host(name: str) -> None:
    target = resolve_target(name)
    assert target.kind.name == "llvm"
    assert int(target.attrs["num-cores"]) == host_device().cores
    assert target.attrs["mcpu"] == host_device().mcpu


def test_a_complete_target_is_returned_unchanged() -> None:
    target = _tvm.Target({"kind": "llvm", "num-cores": 3})
    assert resolve_target(target) is target


@pytest.mark.parametrize(("name", "arch"), [("cuda", "sm_90"), ("sm_80", "sm_80")])
def test_gpu_targets_have_the_limits_that_rules_need(name: str, arch: str) -> None:
    target = resolve_target(name)
    assert target.kind.name == "cuda"
    assert target.attrs["arch"] == arch
    assert int(target.attrs["max_threads_per_block"]) == 1024


def test_incomplete_and_unknown_targets_are_refused() -> None:
    with pytest.raises(UnknownTarget, match=r"'tpu' is not a known target. use one of cpu, llvm"):
        resolve_target("tpu")
    with pytest.raises(UnknownTarget, match="has no num-cores"):
        resolve_target(_tvm.Target({"kind": "llvm"}))
    with pytest.raises(UnknownTarget, match="targets of kind 'c' are not known"):
        resolve_target(_tvm.Target({"kind": "c"}))
    with pytest.raises(UnknownTarget, match="3 is not a target"):
        resolve_target(3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mcpu": "abacus"}, r"LLVM \d+ knows no processor 'abacus'\. use LLVM's name of it, or \"cpu\" for this one"),
        ({"num-cores": 0}, r"num-cores is 0\. give at least 1"),
        ({"num-cores": -1}, "num-cores is -1"),
    ],
)
def test_invalid_processors_and_core_counts_are_refused(
    options: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownTarget, match=words):
        resolve_target(_tvm.Target({"kind": "llvm", "num-cores": 2, **options}))
    assert capfd.readouterr().err == ""  # LLVM prints no warning


def test_code_for_processors_with_other_instructions_is_not_run() -> None:
    other = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 2}
    if "neon" in _tvm.host_features():
        other = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2}
    target = resolve_target(_tvm.Target(other))
    with pytest.raises(UnknownTarget, match=r"lacks .*, which code for .* may use\. use \"cpu\", or tune on such"):
        device_name(target)
    assert device_name(host_target()) == device_name(resolve_target("cpu"))


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("CPU", r"use one of cpu, .*\(did you mean 'cpu'\?\), or a TVM target"),
        ("sm80", r"did you mean 'sm_80'"),
        ("llvm -mcpu=znver3", r"give a TVM target that says everything: Target"),
        ({"kind": "llvm"}, r"give a TVM target that says everything: Target"),
        (["cpu"], "use one of cpu"),
        (None, "use one of cpu"),
    ],
)
def test_messages_suggest_a_remedy(target: Any, remedy: str) -> None:
    with pytest.raises(UnknownTarget, match=remedy):
        resolve_target(target)
