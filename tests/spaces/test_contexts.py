"""MetaSchedule's contexts without 20 seconds for intrinsics, and without its words about rules that nobody has."""

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


def test_contexts_do_not_import_the_intrinsics() -> None:
    module = _tvm.IRModule({"main": workloads.matmul()})
    context = metaschedule.tune_context(module, resolve_target("cpu"))
    assert len(context.generate_design_space()) == 3
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


def test_an_evolution_has_as_many_threads_as_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaschedule, "usable_cores", lambda: 3)
    module = _tvm.IRModule({"main": workloads.matmul()})
    context = metaschedule.evolution(module, resolve_target("cpu"), [], population=8, generations=1, seed=1)
    assert context.num_threads == 3


def test_rules_that_nobody_has_are_not_talked_about(capfd: pytest.CaptureFixture[str]) -> None:
    """topi's pooling asks for a rule; the sketches are those that TVM makes with its warning."""
    task = make_task(workloads.max_pool(), _tvm.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    with_warning = metaschedule.tune_context(task.module, task.target).generate_design_space()
    assert "Unknown schedule rule" in capfd.readouterr().err
    with metaschedule.no_rule_is_unknown(task.module, task.target):
        without = metaschedule.tune_context(task.module, task.target).generate_design_space()
    assert capfd.readouterr().err == ""
    texts = [[str(schedule.trace) for schedule in found] for found in (without, with_warning)]
    assert [re.sub("decision=.*", "", text) for text in texts[0]] == [re.sub("decision=.*", "", t) for t in texts[1]]
    assert any("unannotate" in text for text in texts[0])


def test_a_rule_of_the_users_own_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    task = make_task(workloads.max_pool(), _tvm.Target({"kind": "llvm", "num-cores": 2}), name="pool")
    asked: list[str] = []

    def rule(schedule: Any, block: Any) -> list[Any]:
        asked.append(str(schedule.get(block).name_hint))
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
    assert asked
    assert capfd.readouterr().err == ""
