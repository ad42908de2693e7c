"""The TVM module: versions checked before anything else, and no 20 seconds for intrinsics."""

from __future__ import annotations

import gc
import re
import sys
from typing import Any

import pytest
import tvm_ffi
import workloads

from felixlike import tvmlib
from felixlike.errors import VersionMismatch
from felixlike.frontend import make_task
from felixlike.hardware import host_device, resolve_target
from felixlike.symbolic import sketches


def test_the_versions_installed_are_right() -> None:
    tvmlib.check_versions()
    tvmlib.check_versions({"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"})


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (
            {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15"},
            r"apache-tvm-ffi is 0.1.15, but 0.1.14.\* is needed",
        ),
        ({"apache-tvm": "0.20.0", "apache-tvm-ffi": "0.1.14"}, "apache-tvm is 0.20.0"),
        ({"apache-tvm": "0.27.0"}, "apache-tvm-ffi is none"),
    ],
)
def test_other_versions_are_refused(versions: dict[str, str], words: str) -> None:
    with pytest.raises(VersionMismatch, match=words):
        tvmlib.check_versions(versions)


def test_contexts_do_not_import_the_intrinsics() -> None:
    module = tvmlib.IRModule({"main": workloads.matmul()})
    context = tvmlib.tune_context(module, resolve_target("cpu"))
    assert len(context.generate_design_space()) == 3
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


def test_the_host_is_described() -> None:
    device = host_device()
    assert device.kind == "cpu"
    assert device.cores >= 1
    assert device.vector_bits in (128, 256, 512)
    assert 8 * 2**10 <= device.l1_bytes <= device.l2_bytes


def test_the_same_kernel_compiled_again_has_the_same_digest() -> None:
    target = resolve_target("cpu")
    sketch = sketches(workloads.matmul(), target, space="own")[0]
    first, second = sketch.sample(2, seed=0).tolist()

    def digest(point: list[int]) -> str:
        return tvmlib.code_digest(tvmlib.compile_primfuncs(sketch.schedule(point).mod, target))

    assert digest(first) == digest(first)  # though LLVM names vectors in memory by where they happen to lie
    assert digest(first) != digest(second)


def test_rules_that_nobody_has_are_not_talked_about(capfd: pytest.CaptureFixture[str]) -> None:
    """topi's pooling asks for a rule; the sketches are those that TVM makes with its warning."""
    task = make_task(workloads.max_pool(), tvmlib.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    with_warning = tvmlib.tune_context(task.module, task.target).generate_design_space()
    assert "Unknown schedule rule" in capfd.readouterr().err
    with tvmlib.no_rule_is_unknown(task.module, task.target):
        without = tvmlib.tune_context(task.module, task.target).generate_design_space()
    assert capfd.readouterr().err == ""
    texts = [[str(schedule.trace) for schedule in found] for found in (without, with_warning)]
    assert [re.sub("decision=.*", "", text) for text in texts[0]] == [re.sub("decision=.*", "", t) for t in texts[1]]
    assert any("unannotate" in text for text in texts[0])


def test_a_rule_of_the_users_own_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    task = make_task(workloads.max_pool(), tvmlib.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    asked: list[str] = []

    def rule(schedule: Any, block: Any) -> list[Any]:
        asked.append(str(schedule.get(block).name_hint))
        schedule.unannotate(block, "schedule_rule")
        return [schedule]

    name = "s_tir.meta_schedule.cpu.meta_schedule.pool_max"
    tvm_ffi.register_global_func(name, rule)
    try:
        with tvmlib.no_rule_is_unknown(task.module, task.target):
            tvmlib.tune_context(task.module, task.target).generate_design_space()
        assert tvm_ffi.get_global_func(name, allow_missing=True) is not None
    finally:
        tvm_ffi.registry.remove_global_func(name)
    assert asked
    assert capfd.readouterr().err == ""


def test_an_importer_that_fails_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        builder = tvmlib.relax.BlockBuilder()
        with builder.function("main", []), builder.dataflow():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), tvmlib.builders_end_their_blocks():
        fail()
    gc.collect()
    assert capfd.readouterr().err == ""
    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()
    assert "destroyed with remaining blocks" in capfd.readouterr().err
