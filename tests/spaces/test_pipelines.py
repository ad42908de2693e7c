"""One pipeline a kind of target: rewrites, rules and passes are found in tables, and what is added there is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.operators import matmul

from felixlike import _tvm, codegen
from felixlike.codegen import pipeline as passes_of_code
from felixlike.codegen.pipeline import PASSES, Pass, out_of_order
from felixlike.errors import UnknownTarget
from felixlike.frontend import import_model, make_task
from felixlike.frontend.rewrites import pipeline as passes_of_graphs
from felixlike.frontend.rewrites.pipeline import REWRITES, Rewrite, rewrites_of
from felixlike.hardware import KINDS, Device, kind_of, resolve_target
from felixlike.spaces.design import RULES, Rule
from felixlike.spaces.pipelines import pipeline_of
from felixlike.symbolic import sketches

CPU, GPU = resolve_target("cpu"), resolve_target("sm_90")


def test_tables_name_every_kind_and_no_other() -> None:
    assert set(RULES) == set(PASSES) == set(KINDS) == {kind.name for kind in KINDS.values()}
    assert {kind for rewrite in REWRITES for kind in rewrite.kinds} <= set(KINDS)
    assert all(list(out_of_order(passes)) == [] for passes in PASSES.values())


def test_a_pipeline_is_what_the_tables_say() -> None:
    cpu, gpu = pipeline_of(CPU), pipeline_of(GPU)
    assert [rule.name for rule in cpu.rules] == [
        "register_tiles",
        "row_by_row",
        "case_by_case",
        "transposed_copies",
        "flat",
    ]
    assert [rule.name for rule in gpu.rules] == ["thread_tiles", "row_threads", "flat_threads"]
    assert (cpu.passes, gpu.passes) == (passes_of_code.CPU_PASSES, passes_of_code.GPU_PASSES)
    assert [rewrite.name for rewrite in cpu.rewrites if rewrite not in gpu.rewrites] == [
        "with_channels_last",
        "with_fast_convolutions",
        "with_group_norms_in_two_passes",
        "with_room",
        "with_joined_small_kernels",
    ]
    assert set(gpu.rewrites) < set(cpu.rewrites)
    assert str(gpu).startswith("cuda, on cuda\ngraph: with_total_order, ")
    assert str(gpu).endswith(
        "\nrules: thread_tiles, row_threads, flat_threads\ncode: only_marked_are_asynchronous, tensor_cores"
    )


def test_other_kinds_are_refused() -> None:
    with pytest.raises(UnknownTarget, match="targets of kind 'opencl' are not known"):
        pipeline_of(_tvm.Target("opencl"))


def test_a_device_is_that_of_its_kind() -> None:
    assert [_tvm.device_of(target).type for target in (CPU, GPU)] == [kind_of(t).device for t in (CPU, GPU)]


def _bound(schedule: Any, block: Any, device: Device) -> list[Any]:
    """The smallest rule for GPUs: an output a thread, a row of them a block."""
    row, column, _ = schedule.get_loops(block)
    schedule.bind(row, "blockIdx.x")
    schedule.bind(column, "threadIdx.x")
    schedule.annotate(block, "cores", device.cores)
    return [schedule]


def _is_sum(schedule: Any, block: Any, device: Device) -> list[Any]:
    return _bound(schedule, block, device) if schedule.get_sref(block).parent is not None else []


def test_a_rule_for_gpus_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(matmul(32, 32, 32), GPU, name="product")
    rule = Rule("bound", _is_sum, ("DisallowDynamicLoop", "VerifyGPUCode"))
    monkeypatch.setitem(RULES, "cuda", (rule,))
    assert pipeline_of(GPU).rules == (rule,)
    (sketch,) = sketches(task, space="own")
    assert len(sketches(task, space="best")) > 1  # MetaSchedule's compete
    assert [postprocessor.name for postprocessor in sketch.postprocessors] == list(rule.postprocessors)
    script = sketch.schedule(sketch.sample(1, seed=0)[0]).mod.script()
    assert "threadIdx.x" in script
    assert '"cores": 132' in script  # an H100's


def test_a_pass_for_gpus_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = _tvm.Schedule(matmul(8, 8, 8))
    _bound(schedule, schedule.get_sblock("C"), Device("cuda", "", "", 1, 128, 1020, 1, 1, 0, 1))
    scheduled = schedule.mod
    seen: list[Any] = []

    def look(module: Any) -> Any:
        seen.append(module)
        return module

    monkeypatch.setitem(PASSES, "cuda", (Pass(look),))
    assert pipeline_of(GPU).passes[0].name == "look"
    assert passes_of_code.lower(scheduled, GPU) is scheduled
    executable = codegen.compile_primfuncs(scheduled, GPU)
    assert [module is scheduled for module in seen] == [True, True]
    assert "threadIdx.x" in executable.mod.imports[0].inspect_source()
    codegen.compile_primfuncs(_tvm.IRModule({"main": matmul(8, 8, 8)}), CPU)
    assert len(seen) == 2  # not for other kinds


def test_a_kind_has_what_is_for_all_and_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def make(target: Any) -> Any:
        seen.append(str(target.kind.name))
        return _tvm.transform.Sequential([])

    own = [Rewrite("for_one", make, ("made-up",)), Rewrite("for_gpus", make, ("cuda",))]
    monkeypatch.setattr(passes_of_graphs, "REWRITES", [*REWRITES, *own])
    assert rewrites_of("made-up") == (*(r for r in REWRITES if not r.kinds), own[0])
    model, inputs = torch.nn.Linear(4, 4).eval(), {"input": (2, 4)}
    import_model(model, inputs, CPU)
    assert seen == []
    import_model(model, inputs, GPU)
    assert seen == ["cuda"]
