"""Schedule elementwise functions on GPUs, four neighbouring elements a thread.

    for n, c, h, w in (4, 64, 28, 28):        blocks f_0, threads f_1 (of all n, c, h and w / 4):
        Y[n, c, h, w] = f(X[n, c, h, w])  →       vector in 4: Y[…] = f(X[…])

Input: the schedule of a whole unscheduled function. Output: a schedule that computes each output in one kernel. Such
kernels only wait for memory, and a thread that loads 16 bytes at once waits for fewer loads. In MetaSchedule's default
space, a thread loads single elements.
"""

from __future__ import annotations

from felixlike import _tvm
from felixlike._tvm.typing import Schedule, Var
from felixlike.spaces.blocks import chooses_for_all
from felixlike.spaces.cpu.flat import inlined
from felixlike.spaces.gpu.thread_axes import widest
from felixlike.spaces.gpu.thread_bounds import note_own
from felixlike.spaces.stages import Stage, in_plain_nests

_THREADS = (64, 128, 256, 512)
"""Threads of a block, a sampled choice."""


def flat_threads(sch: Schedule, lanes: int) -> list[Schedule]:
    """Return a new schedule with every output in its own kernel, in vectors, or [] if the rule does not apply.

    The rule applies if no block is a reduction, and neighbours in an output are computed from neighbours or from the
    same element.

    Args:
        sch: The schedule of the whole function. It is not changed.
        lanes: Elements of a vector. Not used: the width depends on the types.
    """
    if not in_plain_nests(sch):
        return []
    new = sch.copy()
    try:
        stages = inlined(new)
        if not stages or not all(_in_vectors(new, stage) for stage in stages):
            return []
    except _tvm.ScheduleError:
        return []
    return [new]


def _in_vectors(sch: Schedule, stage: Stage) -> bool:
    """Compute one output in vectors and return whether that is possible."""
    variables = list(stage.extents)
    if not variables or not any(extent > 1 for extent in stage.extents.values()):
        return False
    last = variables[-1]
    bits = max(_tvm.bits(buffer.dtype) for buffer, _ in (*stage.reads, *stage.writes))
    width = widest(stage.extents[last], bits)
    steps = {stage.step(access, last) for access in stage.reads}
    if width == 1 or _shifted(stage, last) or stage.step(stage.writes[0], last) != 1 or not steps <= {0, 1}:
        return False
    block = sch.get_sblock(stage.name)
    if chooses_for_all(sch.get(block)):
        return False
    *outer, loop = sch.get_loops(block)
    vectors, lane = sch.split(loop, [None, width], disable_predication=True)
    threads = sch.sample_categorical(_THREADS, [1 / len(_THREADS)] * len(_THREADS))
    grid, group = sch.split(sch.fuse(*outer, vectors), [None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(group, "threadIdx.x")
    sch.vectorize(lane)
    note_own(sch, block)
    return True


def _shifted(stage: Stage, last: Var) -> bool:
    """Return whether an index divides, or takes the remainder of, an expression other than the last variable alone.

    A vector may then cross an end.
    """
    analyzer = _tvm.sym.Analyzer()
    for variable, extent in stage.extents.items():
        analyzer.bind(variable, _tvm.ir.Range(0, extent))
    indices = [analyzer.simplify(index) for _, places in stage.reads for index in places]
    kinds = (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod)
    divided = [division.a for index in indices for division in _tvm.found(index, kinds)]
    return any(_tvm.uses(dividend, last) and not dividend.same_as(last) for dividend in divided)
