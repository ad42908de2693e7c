"""Each kind of target has one pipeline of rewrites, rules and passes from tables, and table entries are used."""

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


def test_tables_have_exactly_the_known_kinds() -> None:
    assert set(RULES) == set(PASSES) == set(KINDS) == {kind.name for kind in KINDS.values()}
    assert {kind for rewrite in REWRITES for kind in rewrite.kinds} <= set(KINDS)
    assert all(list(out_of_order(passes)) == [] for passes in PASSES.values())


def test_a_pipeline_has_the_entries_of_the_tables() -> None:
    cpu, gpu = pipeline_of(CPU), pipeline_of(GPU)
    assert [rule.name for rule in cpu.rules] == [
        "recurrent_forms",
        "query_tiles",
        "transformed_tiles",
        "register_tiles",
        "row_by_row",
        "window_tiles",
        "case_by_case",
        "transposed_copies",
        "flat",
    ]
    assert [rule.name for rule in gpu.rules] == ["thread_tiles", "row_threads", "flat_threads"]
    assert (cpu.passes, gpu.passes) == (passes_of_code.CPU_PASSES, passes_of_code.GPU_PASSES)
    assert [rewrite.name for rewrite in cpu.rewrites if rewrite not in gpu.rewrites] == [
        "with_row_scatters",
        "with_channels_last",
        "with_fast_convolutions",
        "with_even_channels",
        "with_fused_attention",
        "with_narrow_tensors",
        "with_own_conversions",
        "with_bfloat16_factors",
        "with_flat_convolutions",
        "with_room",
        "with_pools_by_dimension",
        "with_joined_small_kernels",
    ]
    assert set(gpu.rewrites) < set(cpu.rewrites)
    assert str(gpu).startswith("cuda, on cuda\ngraph: ConvertToDataflow, with_total_order, ")
    assert str(gpu).endswith(
        "\nrules: thread_tiles, row_threads, flat_threads"
        "\ncode: plain_conditions, choose_lazily, keep_rounding, wrap_integers_on_gpus, "
        "only_marked_are_asynchronous, tensor_cores"
    )


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UnknownTarget, match="'opencl'"):
        pipeline_of(_tvm.Target("opencl"))


def test_the_device_type_follows_the_kind() -> None:
    assert [_tvm.device_of(target).type for target in (CPU, GPU)] == [kind_of(t).device for t in (CPU, GPU)]


def _bind_threads(schedule: Any, block: Any, device: Device) -> list[Any]:
    """Apply a minimal GPU rule: one output per thread, one row per block."""
    row, column, _ = schedule.get_loops(block)
    schedule.bind(row, "blockIdx.x")
    schedule.bind(column, "threadIdx.x")
    schedule.annotate(block, "cores", device.cores)
    return [schedule]


def _rule_for_sums(schedule: Any, block: Any, device: Device) -> list[Any]:
    return _bind_threads(schedule, block, device) if schedule.get_sref(block).parent is not None else []


def test_a_rule_for_gpus_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(matmul(32, 32, 32), GPU, name="product")
    rule = Rule("bound", _rule_for_sums, ("DisallowDynamicLoop", "VerifyGPUCode"))
    monkeypatch.setitem(RULES, "cuda", (rule,))
    assert pipeline_of(GPU).rules == (rule,)
    (sketch,) = sketches(task, space="own")
    assert len(sketches(task, space="best")) > 1  # MetaSchedule's sketches are included
    assert [postprocessor.name for postprocessor in sketch.postprocessors] == list(rule.postprocessors)
    script = sketch.schedule(sketch.sample(1, seed=0)[0]).mod.script()
    assert "threadIdx.x" in script
    assert '"cores": 132' in script  # the cores of an H100


def test_a_pass_for_gpus_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = _tvm.Schedule(matmul(8, 8, 8))
    _bind_threads(schedule, schedule.get_sblock("C"), Device("cuda", "", "", 1, 128, 1020, 1, 1, 0, 1))
    scheduled = schedule.mod
    seen_modules: list[Any] = []

    def look(module: Any) -> Any:
        seen_modules.append(module)
        return module

    monkeypatch.setitem(PASSES, "cuda", (Pass(look),))
    assert pipeline_of(GPU).passes[0].name == "look"
    assert passes_of_code.lower(scheduled, GPU) is scheduled
    executable = codegen.compile_primfuncs(scheduled, GPU)
    assert [module is scheduled for module in seen_modules] == [True, True]
    assert "threadIdx.x" in executable.mod.imports[0].inspect_source()
    codegen.compile_primfuncs(_tvm.IRModule({"main": matmul(8, 8, 8)}), CPU)
    assert len(seen_modules) == 2  # the pass is not used for other kinds


def test_a_kind_uses_common_rewrites_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen_kinds: list[str] = []

    def make(target: Any) -> Any:
        seen_kinds.append(str(target.kind.name))
        return _tvm.transform.Sequential([])

    made_up = [Rewrite("for_one", make, ("made-up",)), Rewrite("for_gpus", make, ("cuda",))]
    monkeypatch.setattr(passes_of_graphs, "REWRITES", [*REWRITES, *made_up])
    assert rewrites_of("made-up") == (*(r for r in REWRITES if not r.kinds), made_up[0])
    model, inputs = torch.nn.Linear(4, 4).eval(), {"input": (2, 4)}
    import_model(model, inputs, CPU)
    assert seen_kinds == []
    import_model(model, inputs, GPU)
    assert seen_kinds == ["cuda"]
