"""Schedule elementwise functions in vectors that run over the ends of dimensions.

    for n, c, h, w in (4, 64, 28, 28):              parallel for r_0: for r_1:
        Y[n, c, h, w] = f(X[n, c, h, w])    →           for p_0: unroll p_1: vector p_2 in 16:
                                                            Y[r, p] = f(X[r, p])        (r of 256, p of 784)

Input: the schedule of a whole unscheduled function. Output: a schedule that computes each output in one loop nest. Of
the innermost loops that run contiguously through all buffers, as many are fused as fill whole vectors. MetaSchedule's
default space keeps loops apart, so its vectors are as long as a dimension, 28 elements here, which LLVM splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Node, Schedule, TirExpr
from felixlike.codegen.annotations import Peel
from felixlike.hardware.vectors import SHORTEST, power_of_two_below
from felixlike.spaces.stages import Stage, contiguous, in_plain_nests, stages_of


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on loops of vectors. All are chosen by hand.

    No benchmark compares other values of `long` and `stride`.

    Attributes:
        unrolled: Upper limit on vectors in an unrolled loop without a predicate, when sampling.
        rows: Upper limit on rows in a parallel iteration, when sampling.
        seams: Upper limit on seams along a loop, since the code between seams is duplicated.
        long: Vectors of a row from which its tail matters little.
        stride: Upper limit on the stride, in elements, between two lanes of what is read. With 4, a vector of float32
            touches memory of four vectors.
    """

    unrolled: int = 8
    rows: int = 64
    seams: int = 8
    long: int = 4
    stride: int = 4


_LIMITS = _Limits()


def flat(sch: Schedule, lanes: int) -> list[Schedule]:
    """Return a new schedule with every output in one parallel loop nest, in vectors, or [] if the rule does not apply.

    The rule applies if no block is a reduction, and neighbours in an output are computed from neighbours or from the
    same element.

    Args:
        sch: The schedule of the whole function. It is not changed.
        lanes: Elements of a vector, a power of two.
    """
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
    """Inline all stages but the outputs and return the remaining stages, or [] if a stage is a reduction."""
    stages = stages_of(sch)
    if any(stage.reduced for stage in stages):
        return []
    for stage in stages:
        if not stage.output:
            sch.compute_inline(sch.get_sblock(stage.name))
    return stages_of(sch)


def _in_vectors(sch: Schedule, stage: Stage, lanes: int) -> bool:
    """Compute one output in vectors and return whether that is possible."""
    variables = list(stage.extents)
    if not any(extent > 1 for extent in stage.extents.values()):
        return False
    last = stage.innermost(variables)
    steps = [stage.step(access, last) for access in stage.reads]
    if stage.step(stage.writes[0], last) != 1 or any(step > _LIMITS.stride for step in steps):
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
        sch.parallel(sch.split(rows, sch.sample_perfect_tile(rows, 2, _LIMITS.rows))[0])
    if width in (lanes, length) and not (seams and outer):
        vectors, lane = sch.split(inner, [None, width])
        parts = 2 if outer else 3
        loops = sch.split(vectors, sch.sample_perfect_tile(vectors, parts, _LIMITS.unrolled))
        if not outer:
            sch.parallel(loops[0])
        sch.unroll(loops[-1])
        sch.vectorize(lane)
    else:
        # TVM vectorizes neither below a predicate nor what is different for some lanes.
        if not outer:
            sch.parallel(sch.add_unit_loop(inner))
        width = length if seams else min(4 * lanes, power_of_two_below(length))
        vectors, _ = sch.split(inner, [None, width])
        Peel(length, lanes, tuple(seams)).put(sch, vectors)
    return True


def _fused(stage: Stage, body: Node, lanes: int) -> tuple[int, list[int]]:
    """Return how many of the innermost loops to fuse, and the seams along the fused loop.

    These are the fewest loops that are contiguous and fill some vectors. The other loops number rows.
    """
    variables = list(stage.extents)
    innermost = len(variables) - variables.index(stage.innermost(variables))
    _, most = contiguous(stage, variables)
    seams_by_count = {}
    for count in range(1, most + 1):
        seams = _seams(body, {v: stage.extents[v] for v in variables[-count:]})
        if seams is not None:
            seams_by_count[count] = seams
    if not seams_by_count:
        return innermost, []
    lengths = {count: prod(stage.extents[v] for v in variables[-count:]) for count in seams_by_count}
    best = max(seams_by_count, key=lambda count: (_suits(lengths[count], lanes), -count))
    return best, seams_by_count[best]


def _suits(length: int, lanes: int) -> tuple[bool, bool, int]:
    """Return a key that ranks how well vectors run along `length` elements. Larger is better."""
    whole, long = length % lanes == 0, length >= _LIMITS.long * lanes
    return whole, long, 0 if long else length


def _seams(body: Node, along: dict[Any, int]) -> list[int] | None:
    """Return the positions along some fused loops where a condition changes or an index restarts, or None if unknown.

    `along` maps variables to extents. Parts of a concatenation, for example, meet at a seam. No vector may cross a
    seam. Returns None if a condition depends on some of the loops in another way, or there are too many seams. Lanes
    may differ in comparisons of data.
    """
    place, stride = _tvm.tirx.const(0, "int64"), 1
    for variable, extent in reversed(along.items()):
        place, stride = place + variable.astype("int64") * stride, stride * extent
    branches = _tvm.calls(body, "prim.if_then_else")  # which TVM does not vectorize if they depend on data
    positions: set[int] = set()
    for kind, after in ((_tvm.tirx.LT, 0), (_tvm.tirx.LE, 1)):
        for test in _tvm.found(body, kind):
            # p < c and c <= p change at c, p <= c and c < p at c + 1.
            for moving, fixed, beyond in ((test.a, test.b, after), (test.b, test.a, 1 - after)):
                if isinstance(fixed, _tvm.tirx.IntImm) and not _is_truth(moving):
                    shift = _shift(moving, place)
                    if shift is not None:
                        positions.add(int(fixed.value) + beyond - shift)
                    elif any(_tvm.uses(moving, v) for v in along) and (branches or not _reads(moving)):
                        return None
    for remainder in _tvm.found(body, _tvm.tirx.FloorMod):
        shift = _shift(remainder.a, place) if isinstance(remainder.b, _tvm.tirx.IntImm) else None
        if shift is not None and stride <= _LIMITS.seams * int(remainder.b.value):
            positions.update(range(-shift % int(remainder.b.value), stride, int(remainder.b.value)))
    seams = sorted(seam for seam in positions if 0 < seam < stride)
    return seams if len(seams) <= _LIMITS.seams else None


def _reads(expression: TirExpr) -> bool:
    """Return whether an expression is computed from elements of buffers."""
    return bool(_tvm.found(expression, _tvm.ir.TensorLoad))


def _is_truth(expression: TirExpr) -> bool:
    """Return whether an expression is a condition as a number, which `where` compares with 0. Its own tests count."""
    return isinstance(expression, _tvm.tirx.Cast) and str(expression.value.ty.dtype) == "bool"


def _shift(expression: TirExpr, place: Any) -> int | None:
    """Return the constant difference of an expression and a place, or None if it is not constant."""
    if not str(expression.ty.dtype).startswith("int"):
        return None
    difference = _tvm.simplify(expression.astype("int64") - place)
    return int(difference) if isinstance(difference, _tvm.tirx.IntImm) else None
