"""Instruction sets are selected from LLVM's features."""

import pytest

from felixlike import _tvm
from felixlike.hardware import host_cpu, instruction_sets


def test_tuning_features_are_excluded() -> None:
    features = ["sse4.2", "avx512f", "amx-int8", "fast-gather", "64bit", "prefer-256-bit", "neon", "x87", "bmi2"]
    assert instruction_sets(features) == {"sse4.2", "avx512f", "amx-int8", "neon", "bmi2"}


def test_a_model_number_does_not_hide_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypervisors give newer processors the model numbers of older ones."""

    def sets(name: str) -> frozenset[str]:
        return instruction_sets(_tvm.cpu_features(_tvm.Target({"kind": "llvm", "mcpu": name})))

    def named(detected: str, present: frozenset[str]) -> str:
        host_cpu.cache_clear()
        monkeypatch.setattr(_tvm, "host_cpu", lambda: detected)
        monkeypatch.setattr(_tvm, "host_features", lambda: present)
        return host_cpu()

    if "rocketlake" not in _tvm.known_cpus():
        pytest.skip("LLVM lists the processors of the host's architecture, which is not x86-64")
    assert named("rocketlake", sets("rocketlake")) == "rocketlake"
    assert named("rocketlake", sets("rocketlake") - {"avx512bw"}) == "rocketlake"
    assert named("rocketlake", sets("sapphirerapids") | {"avx10.1"}) == "sapphirerapids"
    assert named("znver3", sets("znver5")) == "znver5"
    assert named("znver3", sets("znver3") | {"avx10.1"}) == "znver3"
    host_cpu.cache_clear()
