"""Flat: elements that are computed one by one, in vectors that run over the ends of dimensions.

    for n, c, h, w in (4, 64, 28, 28):              parallel for r_0: for r_1:
        Y[n, c, h, w] = f(X[n, c, h, w])    →           for p_0: unroll p_1: vector p_2 in 16:
                                                            Y[r, p] = f(X[r, p])        (r of 256, p of 784)

In: the schedule of a whole unscheduled function. Out: one in which all is computed where it is written. Of the
innermost loops that everything read and written runs through in one go, as many become one as fill whole vectors.
MetaSchedule's default space keeps loops apart, so that its vectors are as long as a dimension, 28 elements, which LLVM
takes apart.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Node, Schedule, TirExpr
from felixlike.codegen.annotations import Peel
from felixlike.hardware.vectors import SHORTEST, power_of_two_below
from felixlike.spaces.stages import Stage, contiguous, in_plain_nests, stages_of

_MOST_UNROLLED = 8
"""Vectors that are computed one after another without a test: a bound of what is sampled, chosen by hand."""

_MOST_ROWS = 64
"""Rows a parallel iteration: a bound of what is sampled, chosen by hand."""

_LONG = 4
"""Vectors of a row that is long enough for its rest to matter little.  Chosen by hand: no benchmark compares other
values."""

_MOST_SEAMS = 8
"""Seams along a loop, between which code is written out: as much code as one loop may become.  Chosen by hand."""

_LONGEST_STEP = 4
"""Elements between two lanes of what is read, beyond which vectors do not pay: with 4, a vector of float32 touches four
vectors' worth of memory.  Chosen by hand: no benchmark compares other values."""


def flat(sch: Schedule, lanes: int) -> list[Schedule]:
    """A new schedule with every output in one parallel nest, in vectors; [] where this does not apply.

    sch: of the whole function, stays as it is.  lanes: elements of a vector, a power of two.

    Applies if no block sums up, and neighbours in an output are computed from neighbours, or from the same element."""
    if not in_plain_nests(sch):
        return []
    new = sch.copy()
    try:
        stages = inlined(new)
        if not stages or not all(_in_vectors(new, stage, lanes) for stage in stages):
            return []
    except _tvm.ScheduleError:
        return []
    return [new]


def inlined(sch: Schedule) -> list[Stage]:
    """What is left once everything but the outputs is computed where it is read; none where something sums up."""
    stages = stages_of(sch)
    if any(stage.reduced for stage in stages):
        return []
    for stage in stages:
        if not stage.output:
            sch.compute_inline(sch.get_sblock(stage.name))
    return stages_of(sch)


def _in_vectors(sch: Schedule, stage: Stage, lanes: int) -> bool:
    """Compute one output in vectors; whether that is possible."""
    variables = list(stage.extents)
    if not any(extent > 1 for extent in stage.extents.values()):
        return False
    last = stage.innermost(variables)
    steps = [stage.step(access, last) for access in stage.reads]
    if stage.step(stage.writes[0], last) != 1 or any(step > _LONGEST_STEP for step in steps):
        return False
    loops = sch.get_loops(sch.get_sblock(stage.name))
    fused, seams = _fused(stage, sch.get(sch.get_sblock(stage.name)).body, lanes)
    length = prod(stage.extents[v] for v in variables[-fused:])
    if length < min(SHORTEST, lanes):
        return False
    width = gcd(lanes, length, *seams)
    inner = sch.fuse(*loops[-fused:]) if fused > 1 else loops[-1]
    outer = list(loops[:-fused])
    if outer:
        rows = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        sch.parallel(sch.split(rows, sch.sample_perfect_tile(rows, 2, _MOST_ROWS))[0])
    if width in (lanes, length):
        vectors, lane = sch.split(inner, [None, width])
        parts = 2 if outer else 3
        loops = sch.split(vectors, sch.sample_perfect_tile(vectors, parts, _MOST_UNROLLED))
        if not outer:
            sch.parallel(loops[0])
        sch.unroll(loops[-1])
        sch.vectorize(lane)
    else:
        # TVM refuses to vectorise what is under a test.
        if not outer:
            sch.parallel(sch.add_unit_loop(inner))
        width = length if seams else min(4 * lanes, power_of_two_below(length))
        vectors, _ = sch.split(inner, [None, width])
        Peel(length, lanes, tuple(seams)).put(sch, vectors)
    return True


def _fused(stage: Stage, body: Node, lanes: int) -> tuple[int, list[int]]:
    """How many of the innermost loops become one: the fewest that run on and fill some vectors; all but those number
    rows.  And the seams along it."""
    variables = list(stage.extents)
    innermost = len(variables) - variables.index(stage.innermost(variables))
    _, most = contiguous(stage, variables)
    found = {}
    for count in range(1, most + 1):
        seams = _seams(body, {v: stage.extents[v] for v in variables[-count:]})
        if seams is not None:
            found[count] = seams
    if not found:
        return innermost, []
    lengths = {count: prod(stage.extents[v] for v in variables[-count:]) for count in found}
    best = max(found, key=lambda count: (_suits(lengths[count], lanes), -count))
    return best, found[best]


def _suits(length: int, lanes: int) -> tuple[bool, bool, int]:
    """How well vectors run along so many elements."""
    whole, long = length % lanes == 0, length >= _LONG * lanes
    return whole, long, 0 if long else length


def _seams(body: Node, along: dict[Any, int]) -> list[int] | None:
    """Where, counted along some loops as one, a condition changes or an index starts anew, as between the parts of a
    concatenation; None where a condition depends on some of the loops in another way.

    along: variables with their extents.  No vector may reach across a seam."""
    place, stride = _tvm.tirx.const(0, "int64"), 1
    for variable, extent in reversed(along.items()):
        place, stride = place + variable.astype("int64") * stride, stride * extent
    found: set[int] = set()
    for kind, after in ((_tvm.tirx.LT, 0), (_tvm.tirx.LE, 1)):
        for test in _tvm.found(body, kind):
            # p < c and c <= p change at c, p <= c and c < p at c + 1.
            for moving, fixed, beyond in ((test.a, test.b, after), (test.b, test.a, 1 - after)):
                if isinstance(fixed, _tvm.tirx.IntImm):
                    shift = _shift(moving, place)
                    if shift is not None:
                        found.add(int(fixed.value) + beyond - shift)
                    elif any(_tvm.uses(moving, variable) for variable in along):
                        return None
    for remainder in _tvm.found(body, _tvm.tirx.FloorMod):
        shift = _shift(remainder.a, place) if isinstance(remainder.b, _tvm.tirx.IntImm) else None
        if shift is not None and stride <= _MOST_SEAMS * int(remainder.b.value):
            found.update(range(-shift % int(remainder.b.value), stride, int(remainder.b.value)))
    seams = sorted(seam for seam in found if 0 < seam < stride)
    return seams if len(seams) <= _MOST_SEAMS else None


def _shift(expression: TirExpr, place: Any) -> int | None:
    """How far an expression is beyond a place, if always as far."""
    if not str(expression.ty.dtype).startswith("int"):
        return None
    difference = _tvm.simplify(expression.astype("int64") - place)
    return int(difference) if isinstance(difference, _tvm.tirx.IntImm) else None
