"""Targets: names, complete TVM targets, and targets that are refused."""

from __future__ import annotations

import re
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
    with pytest.raises(UnknownTarget, match=r"'tpu'.* cpu, llvm"):
        resolve_target("tpu")
    with pytest.raises(UnknownTarget, match=r"llvm .*num-cores"):
        resolve_target(_tvm.Target({"kind": "llvm"}))
    with pytest.raises(UnknownTarget, match="kind 'c'"):
        resolve_target(_tvm.Target({"kind": "c"}))
    with pytest.raises(UnknownTarget, match="target: 3 "):
        resolve_target(3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mcpu": "abacus"}, r"LLVM \d+ .*'abacus'"),
        ({"num-cores": 0}, r"num-cores .* 0\."),
        ({"num-cores": -1}, r"num-cores .* -1\."),
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
    with pytest.raises(UnknownTarget, match=rf"\({host_device().mcpu}\) lacks .*{other['mcpu']}"):
        device_name(target)
    assert device_name(host_target()) == device_name(resolve_target("cpu"))


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("CPU", r"\bcpu, .*'cpu'\?.*TVM target"),
        ("sm80", r"'sm_80'\?"),
        ("llvm -mcpu=znver3", r"Target\(\{\"kind\": \"llvm\""),
        ({"kind": "llvm"}, r"Target\(\{\"kind\": \"llvm\""),
        (["cpu"], r"\bcpu, llvm"),
        (None, r"\bcpu, llvm"),
    ],
)
def test_messages_suggest_a_remedy(target: Any, remedy: str) -> None:
    with pytest.raises(UnknownTarget) as caught:
        resolve_target(target)
    assert re.search(remedy, caught.value.remedy)
