"""Schedule functions other than contractions for every size: rows in parallel, each row computed in one place.

    for T × T: max; for T × T: exp; for T × T: sum; …    →    parallel for T: max, exp, sum, … of one row, in vectors

Input: a PrimFunc with symbolic sizes. Output: the function with a schedule, or unchanged if TVM rejects it.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Func, Schedule
from felixlike.codegen.annotations import Row
from felixlike.spaces.blocks import blocks_of, elementwise


def rowwise(func: Func, lanes: int) -> Func:
    """Return the function with parallel rows. lanes: Elements of a vector."""
    schedule = _tvm.Schedule(func)
    try:
        _schedule(schedule)
        _mark(schedule, lanes)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return func
    return schedule.mod["main"]


def _schedule(schedule: Schedule) -> None:
    """Inline, fuse the shared loops, compute all blocks at them and run them in parallel."""
    for block in blocks_of(schedule):
        _inline(schedule, block)
    *before, last = blocks_of(schedule)
    loops = schedule.get_loops(last)
    spatial = [loop for loop, v in zip(loops, schedule.get(last).iter_vars, strict=False) if _tvm.is_spatial(v)]
    rows = _common(schedule, before, last, len(spatial))
    if not rows:
        return
    shared = schedule.fuse(*spatial[:rows])
    for block in reversed(before):
        schedule.compute_at(block, shared, preserve_unit_loops=True)
    schedule.parallel(shared)


def _mark(schedule: Schedule, lanes: int) -> None:
    """Annotate loops along rows; reductions are initialized outside of theirs.

    The innermost loops of a block are those of its last variables, in order.
    """
    for block in blocks_of(schedule):
        loops = schedule.get_loops(block)
        reduced = [not _tvm.is_spatial(variable) for variable in schedule.get(block).iter_vars]
        count = sum(reduced)
        if not reduced or len(loops) <= count or not all(reduced[len(reduced) - count :]):
            continue
        if count:
            schedule.decompose_reduction(block, loops[-count])
        Row(lanes).put(schedule, schedule.get_loops(block)[-1])


def _inline(schedule: Schedule, block: BlockRef) -> None:
    """Inline an elementwise block, unless it calls a function and has several consumers."""
    if not elementwise(schedule, block) or not schedule.get_consumers(block):
        return
    calls = _tvm.found(schedule.get(block).body, _tvm.ir.Call)
    if calls and len(schedule.get_consumers(block)) > 1:
        return
    try:
        schedule.compute_inline(block)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise


def _common(schedule: Schedule, before: list[Any], last: BlockRef, spatial: int) -> int:
    """Return how many outermost loops all blocks share: all but the last if there are only elementwise blocks."""
    counts = [sum(map(_tvm.is_spatial, schedule.get(block).iter_vars)) for block in before]
    reduced = any(not elementwise(schedule, block) for block in (*before, last))
    if not before:
        return spatial if not elementwise(schedule, last) else max(1, spatial - 1)
    return min(*counts, spatial) if reduced and len(before) > 0 else max(1, spatial - 1)
