"""MetaSchedule's contexts do not import intrinsics, which takes 20 s, and print no warnings about unknown rules."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import tvm_ffi
import workloads

from felixlike import _tvm
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.spaces import metaschedule


def test_contexts_do_not_import_the_intrinsics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tvm.s_tir.tensor_intrin", raising=False)  # another test may import them
    module = _tvm.IRModule({"main": workloads.matmul()})
    context = metaschedule.tune_context(module, resolve_target("cpu"))
    assert len(context.generate_design_space()) == 3
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


def test_an_evolution_uses_all_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaschedule, "usable_cores", lambda: 3)
    module = _tvm.IRModule({"main": workloads.matmul()})
    context = metaschedule.evolution(module, resolve_target("cpu"), [], population=8, generations=1, seed=1)
    assert context.num_threads == 3


def test_unknown_rules_give_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """topi's pooling names a schedule rule that TVM lacks. The sketches equal those that TVM makes with a warning."""
    task = make_task(workloads.max_pool(), _tvm.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    with_warning = metaschedule.tune_context(task.module, task.target).generate_design_space()
    assert "Unknown schedule rule" in capfd.readouterr().err
    with metaschedule.no_rule_is_unknown(task.module, task.target):
        without_warning = metaschedule.tune_context(task.module, task.target).generate_design_space()
    assert capfd.readouterr().err == ""
    texts = [[str(schedule.trace) for schedule in schedules] for schedules in (without_warning, with_warning)]
    assert [re.sub("decision=.*", "", text) for text in texts[0]] == [re.sub("decision=.*", "", t) for t in texts[1]]
    assert any("unannotate" in text for text in texts[0])


def test_a_registered_rule_is_called(capfd: pytest.CaptureFixture[str]) -> None:
    task = make_task(workloads.max_pool(), _tvm.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    called_for: list[str] = []

    def rule(schedule: Any, block: Any) -> list[Any]:
        called_for.append(str(schedule.get(block).name_hint))
        schedule.unannotate(block, "schedule_rule")
        return [schedule]

    name = "s_tir.meta_schedule.cpu.meta_schedule.pool_max"
    tvm_ffi.register_global_func(name, rule)
    try:
        with metaschedule.no_rule_is_unknown(task.module, task.target):
            metaschedule.tune_context(task.module, task.target).generate_design_space()
        assert tvm_ffi.get_global_func(name, allow_missing=True) is not None
    finally:
        tvm_ffi.registry.remove_global_func(name)
    assert called_for
    assert capfd.readouterr().err == ""
