"""A sketch at a point as a TVM function whose loops keep their identity.

The trace is replayed without the postprocessor that fuses loops, so that levels and reuse can be seen; allocations are
where TVM's own pass puts them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from felixlike import _tvm
from felixlike.frontend.constants import LAYOUT_FREE, PACKING, with_indices
from felixlike.hardware import kind_of
from felixlike.symbolic import Sketch
from felixlike.symbolic.replay.replay import replay
from felixlike.symbolic.replay.state import ReplayState
from felixlike.symbolic.replay.trace import with_point

TOGETHER = "copied_together"
"""Notes a block that all threads of a GPU's block run once, together."""


def unfused(sketch: Sketch, point: tuple[int, ...]) -> Any:
    """The PrimFunc; copies that threads share carry the note `TOGETHER`."""
    if kind_of(sketch.task.target).binds_threads:
        return _unfused_on_gpu(sketch, point)
    if kinds_by_trace(sketch):
        return _unfused_by_replay(sketch, point)
    schedule = _tvm.Schedule(sketch.task.module, debug_mask="none")
    with_point(sketch._trace, sketch.variables, point).apply_to_schedule(schedule, remove_postproc=True)
    return _postprocessed(schedule, sketch)


def kinds_by_trace(sketch: Sketch) -> bool:
    """Whether the trace itself says what is parallel and in vectors, rather than MetaSchedule's postprocessor."""
    return any(str(instruction.kind.name) == "Parallel" for instruction in sketch._trace.insts)


def _replayed(sketch: Sketch, point: tuple[int, ...]) -> ReplayState:
    """Some traces fuse loops themselves; our own replay, with numbers for all variables, does not."""
    fixed = [dataclasses.replace(v, choices=(x,)) for v, x in zip(sketch.variables, point, strict=True)]
    locations = [point[i] for i in sketch.location_columns]
    return replay(sketch.task.module, sketch.task.target, sketch._trace, fixed, locations, numbers=True)


def _unfused_by_replay(sketch: Sketch, point: tuple[int, ...]) -> Any:
    """Of a CPU's trace. The replay keeps no attributes; which layouts are free must be said anew."""
    main = _replayed(sketch, point).schedule.mod["main"]
    names = [str(parameter.name) for parameter in main.params]
    if PACKING not in main.script():
        main = with_indices(main, LAYOUT_FREE, [names.index(name) for name in sketch.task.layout_free])
    return _postprocessed(_tvm.Schedule(_tvm.IRModule({"main": main}), debug_mask="none"), sketch)


def _postprocessed(schedule: Any, sketch: Sketch) -> Any:
    """The function of a CPU's schedule after the postprocessors that leave its loops apart."""
    if any(str(instruction.kind.name) == "DecomposeReduction" for instruction in sketch._trace.insts):
        main = schedule.mod["main"]
        body = _tvm.structural_map(main.body, (_tvm.s_tir.SBlock, _without_initial_value))
        schedule = _tvm.Schedule(_tvm.IRModule({"main": main.with_body(body)}), debug_mask="none")
    else:
        assert _tvm.ms.postproc.RewriteReductionBlock().apply(schedule)
    assert _tvm.ms.postproc.RewriteLayout().apply(schedule)
    return _tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(schedule.mod)["main"]


def _without_initial_value(block: Any) -> Any:
    """A block of which TVM cannot take the initial values out: it stands under a test. They are no work."""
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
