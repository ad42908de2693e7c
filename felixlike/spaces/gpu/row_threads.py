"""Row by row on GPUs: reductions along rows by the threads of a warp, or of a few, and several rows a block.

    for r:                          blocks r_0: threads y of r_1:
        m[r] = max X[r, :]              m = max X[r, s·32 + x] over s and the threads x
        s[r] = Σ exp(X[r, :] − m)   →   s = Σ …
        Y[r, :] = …                     threads x: vector in 4: Y[r, …] = exp(X[r, …] − m) / s

In: the schedule of a whole unscheduled function. Out: one with a single kernel. What single elements are computed from
is computed again where it is read; what is summed up, each thread has in a register: a warp's threads exchange partial
results without shared memory, and nobody waits for other rows. MetaSchedule's default space has one row a block.
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
"""Threads of a row."""
_MOST_ROWS = 16
"""Of a block."""


def row_threads(sch: Schedule, lanes: int) -> list[Schedule]:
    """A new schedule with reductions along rows by threads; [] where this does not apply.

    sch: of the whole function, stays as it is.  lanes: elements of a vector.

    Applies if every reduction reads each element of some buffer once, neighbours along a row one after the other, and
    every buffer between the stages is indexed by the same rows; and if the last stage has rows, too."""
    if not in_plain_nests(sch):
        return []
    new = sch.copy()
    try:
        return [new] if _scheduled(new) else []
    except RuntimeError as error:  # a ScheduleError, or a check of TVM's that failed
        if not _tvm.refusal(error):
            raise
        return []


def _scheduled(sch: Schedule) -> bool:
    """Schedule a function; whether that is possible."""
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
    around = list(sch.get_loops(block))[: len(rows[last.name])]
    longest = next(i for i in reversed(range(len(around))) if i == 0 or last.extents[rows[last.name][i]] > 1)
    outer, own = sch.split(around[longest], sch.sample_perfect_tile(around[longest], 2, _MOST_ROWS))
    sch.reorder(*around[:longest], outer, *around[longest + 1 :], own)
    sch.bind(sch.fuse(*around[:longest], outer, *around[longest + 1 :]), "blockIdx.x")
    sch.bind(own, "threadIdx.y")
    for stage in reversed(before):
        sch.compute_at(sch.get_sblock(stage.name), own, preserve_unit_loops=True)
        sch.set_scope(sch.get_sblock(stage.name), 0, "local")
    threads = sch.sample_categorical(_THREADS, [1 / len(_THREADS)] * len(_THREADS))
    for stage in stages:
        _among_threads(sch, stage, len(_along(stage, rows)), threads)
    note_own(sch, block)
    return True


def _fits(stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]]) -> bool:
    """Whether rows lie in memory as they should, and the last stage alone is an output."""
    found = first_reduction(stages)
    if found is None:
        return False
    first, read = found
    if first.step(read, first.innermost(first.reduced)) != 1:
        return False
    if any(stage.output for stage in stages[:-1]) or not rows[stages[-1].name]:
        return False
    return all(_along(stage, rows) for stage in stages)


def _along(stage: Stage, rows: dict[str, tuple[Any, ...]]) -> list[Any]:
    """The variables along a row."""
    return [variable for variable in stage.extents if variable not in rows[stage.name]]


def _among_threads(sch: Schedule, stage: Stage, count: int, threads: Any) -> None:
    """Share the `count` innermost loops of a stage among threads; each has neighbours, where rows are made of such."""
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
        apart = stage.reduced or chooses_for_all(sch.get(sch.get_sblock(stage.name)))
        (sch.unroll if apart else sch.vectorize)(lane)
