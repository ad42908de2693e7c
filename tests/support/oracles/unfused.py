"""Lower a sketch at a point to a TVM function whose loops are not fused.

The trace is replayed without the postprocessor that fuses loops, so that every loop level and its reuse can be counted.
Allocations are placed by TVM's own pass.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from felixlike import _tvm
from felixlike.frontend.constants import LAYOUT_FREE, PACKING, with_indices
from felixlike.hardware import kind_of
from felixlike.spaces.cpu import bfloat16_pairs, narrow_weights
from felixlike.symbolic import Sketch
from felixlike.symbolic.replay.replay import replay
from felixlike.symbolic.replay.state import ReplayState
from felixlike.symbolic.replay.trace import with_point

TOGETHER = "copied_together"
"""Annotation of a block that the threads of a GPU's block run cooperatively, once for all of them."""


def unfused(sketch: Sketch, point: tuple[int, ...]) -> Any:
    """Return the PrimFunc; blocks that threads run cooperatively have the annotation `TOGETHER`."""
    if kind_of(sketch.task.target).binds_threads:
        return _unfused_on_gpu(sketch, point)
    if kinds_by_trace(sketch):
        return _unfused_by_replay(sketch, point)
    schedule = _tvm.Schedule(sketch.task.module, debug_mask="none")
    with_point(sketch.trace, sketch.variables, point).apply_to_schedule(schedule, remove_postproc=True)
    return _postprocessed(schedule, sketch)


def kinds_by_trace(sketch: Sketch) -> bool:
    """Return whether the trace sets parallel and vector loops itself, instead of MetaSchedule's postprocessor."""
    return any(str(instruction.kind.name) == "Parallel" for instruction in sketch.trace.insts)


def _replayed(sketch: Sketch, point: tuple[int, ...]) -> ReplayState:
    """Replay the trace with felixlike's replay and fixed variables, since some traces fuse loops."""
    fixed = [dataclasses.replace(v, choices=(x,)) for v, x in zip(sketch.variables, point, strict=True)]
    locations = [point[i] for i in sketch.location_columns]
    return replay(sketch.task.module, sketch.task.target, sketch.trace, fixed, locations, numbers=True)


def _unfused_by_replay(sketch: Sketch, point: tuple[int, ...]) -> Any:
    """Replay a CPU's trace. The replay drops function attributes, so the attribute of free layouts is set again."""
    main = _replayed(sketch, point).schedule.mod["main"]
    names = [str(parameter.name) for parameter in main.params]
    if PACKING not in main.script():
        main = with_indices(main, LAYOUT_FREE, [names.index(name) for name in sketch.task.layout_free])
    return _postprocessed(_tvm.Schedule(_tvm.IRModule({"main": main}), debug_mask="none"), sketch)


def _postprocessed(schedule: Any, sketch: Sketch) -> Any:
    """Apply the postprocessors that do not fuse loops to a CPU's schedule, and return the function."""
    if any(str(instruction.kind.name) == "DecomposeReduction" for instruction in sketch.trace.insts):
        main = schedule.mod["main"]
        body = _tvm.structural_map(main.body, (_tvm.s_tir.SBlock, _without_initial_value))
        schedule = _tvm.Schedule(_tvm.IRModule({"main": main.with_body(body)}), debug_mask="none")
    else:
        assert _tvm.ms.postproc.RewriteReductionBlock().apply(schedule)
    assert _tvm.ms.postproc.RewriteLayout().apply(schedule)
    assert narrow_weights.narrowed(schedule)
    assert bfloat16_pairs.rounded(schedule)
    return _tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(schedule.mod)["main"]


def _without_initial_value(block: Any) -> Any:
    """Drop the initial value of a block. TVM cannot decompose it under a condition, and it does not count as work."""
    if block.init is None:
        return block
    return _tvm.s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        alloc_buffers=block.alloc_buffers,
        annotations=block.annotations,
    )


def _unfused_on_gpu(sketch: Sketch, point: tuple[int, ...]) -> Any:
    replay = _replayed(sketch, point)
    assert _tvm.ms.postproc.RewriteReductionBlock().apply(replay.schedule)
    for block in replay.fetches:
        replay.schedule.annotate(replay.schedule.get_sblock(block), TOGETHER, 1)
    return _tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(replay.schedule.mod)["main"]
