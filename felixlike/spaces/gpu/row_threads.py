"""Schedule reductions along rows on GPUs: a warp or a few warps reduce a row, and a block has several rows.

    for r:                          blocks r_0: threads y of r_1:
        m[r] = max X[r, :]              m = max X[r, s·32 + x] over s and the threads x
        s[r] = Σ exp(X[r, :] − m)   →   s = Σ …
        Y[r, :] = …                     threads x: vector in 4: Y[r, …] = exp(X[r, …] − m) / s

Input: the schedule of a whole unscheduled function. Output: a schedule with a single kernel. Elementwise values are
recomputed where they are read. Every thread has the reductions' results in a register: a warp's threads exchange
partial results without shared memory and without waiting for other rows. MetaSchedule's default space has one row a
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Schedule
from felixlike.spaces.blocks import chooses_for_all
from felixlike.spaces.cpu.rows import first_reduction, rows_of_stages, undo_last_reshape
from felixlike.spaces.gpu.thread_axes import widest
from felixlike.spaces.gpu.thread_bounds import note_own
from felixlike.spaces.stages import Stage, in_plain_nests, stages_of

_THREADS = (32, 64, 128, 256, 512)
"""Threads of a row, a sampled choice."""
_MOST_ROWS = 16
"""Upper limit on rows of a block, when sampling."""


def row_threads(sch: Schedule, lanes: int) -> list[Schedule]:
    """Return a new schedule with reductions along rows by threads, or [] if the rule does not apply.

    The rule applies if every reduction reads each element of some buffer once, contiguously along a row, all buffers
    between the stages are indexed by the same rows, and the last stage has rows, too.

    Args:
        sch: The schedule of the whole function. It is not changed.
        lanes: Elements of a vector. Not used: the width depends on the types.
    """
    if not in_plain_nests(sch):
        return []
    new = sch.copy()
    try:
        return [new] if _scheduled(new) else []
    except RuntimeError as error:  # a ScheduleError, or a failed check in TVM
        if not _tvm.refusal(error):
            raise
        return []


def _scheduled(sch: Schedule) -> bool:
    """Schedule a function and return whether that is possible."""
    undo_last_reshape(sch)
    for stage in stages_of(sch):
        if not (stage.reduced or stage.output):
            sch.compute_inline(sch.get_sblock(stage.name))
    stages = stages_of(sch)
    rows = rows_of_stages(stages)
    if rows is None or not _fits(stages, rows):
        return False
    *before, last = stages
    for stage in stages:
        loops = dict(zip(stage.extents, sch.get_loops(sch.get_sblock(stage.name)), strict=True))
        sch.reorder(*(loops[v] for v in (*rows[stage.name], *_along(stage, rows))))
    block = sch.get_sblock(last.name)
    row_loops = list(sch.get_loops(block))[: len(rows[last.name])]
    longest = next(i for i in reversed(range(len(row_loops))) if i == 0 or last.extents[rows[last.name][i]] > 1)
    outer, block_rows = sch.split(row_loops[longest], sch.sample_perfect_tile(row_loops[longest], 2, _MOST_ROWS))
    sch.reorder(*row_loops[:longest], outer, *row_loops[longest + 1 :], block_rows)
    sch.bind(sch.fuse(*row_loops[:longest], outer, *row_loops[longest + 1 :]), "blockIdx.x")
    sch.bind(block_rows, "threadIdx.y")
    for stage in reversed(before):
        sch.compute_at(sch.get_sblock(stage.name), block_rows, preserve_unit_loops=True)
        sch.set_scope(sch.get_sblock(stage.name), 0, "local")
    threads = sch.sample_categorical(_THREADS, [1 / len(_THREADS)] * len(_THREADS))
    for stage in stages:
        _among_threads(sch, stage, len(_along(stage, rows)), threads)
    note_own(sch, block)
    return True


def _fits(stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]]) -> bool:
    """Return whether rows are contiguous in memory and only the last stage is an output."""
    reduction = first_reduction(stages)
    if reduction is None:
        return False
    first, read = reduction
    if first.step(read, first.innermost(first.reduced)) != 1:
        return False
    if any(stage.output for stage in stages[:-1]) or not rows[stages[-1].name]:
        return False
    return all(_along(stage, rows) for stage in stages)


def _along(stage: Stage, rows: dict[str, tuple[Any, ...]]) -> list[Any]:
    """Return the variables along a row."""
    return [variable for variable in stage.extents if variable not in rows[stage.name]]


def _among_threads(sch: Schedule, stage: Stage, count: int, threads: Any) -> None:
    """Distribute the `count` innermost loops of a stage among threads, in vectors if all accesses are contiguous."""
    *outer, last = list(sch.get_loops(sch.get_sblock(stage.name)))[-count:]
    variable = list(stage.extents)[-1]
    accesses = (*stage.reads, *stage.writes)
    bits = max(_tvm.bits(buffer.dtype) for buffer, _ in accesses)
    side_by_side = all(stage.step(access, variable) in (0, 1) for access in accesses)
    width = widest(int(sch.get(last).extent), bits) if side_by_side else 1
    lane = None
    if width > 1:
        last, lane = sch.split(last, [None, width], disable_predication=True)
    _, group = sch.split(sch.fuse(*outer, last), [None, threads])
    sch.bind(group, "threadIdx.x")
    if lane is not None:
        separate = stage.reduced or chooses_for_all(sch.get(sch.get_sblock(stage.name)))
        (sch.unroll if separate else sch.vectorize)(lane)
