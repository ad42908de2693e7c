"""Multiply pairs of bfloat16 numbers: two steps of a reduction in the time of one, with sums in float32.

    for k: Y[j] += X[k] · W[k, j]  →  for k_0: vector j: for k_1 in 2: Y[j] += X[2·k_0 + k_1] · W[2·k_0 + k_1, j]

Input: a contraction and its roles in a register tile. Output: the roles in pairs, if its products can be computed so,
and the annotation of the loop over a pair, `k_1`. `codegen/passes/multiply_pairs.py` replaces that loop by an
instruction. Both operands are rounded before the tile reads them: constants when they are packed, others when they are
copied. Their pairs are neighbours in memory, and a pair is loaded as one word of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule
from felixlike.codegen.annotations import Pairs
from felixlike.codegen.pair_functions import LANES
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS
from felixlike.hardware.vectors import SHORTEST
from felixlike.spaces.blocks import realizes
from felixlike.spaces.contraction import Axis, Contraction, Operand
from felixlike.spaces.padding import is_plain
from felixlike.spaces.roles import Roles

PAIR = 2
"""Steps of the reduction that one instruction computes."""

MARK = Pairs(PRECISIONS.index(BFLOAT16))
"""The annotation of a loop over a pair."""


def roles_in_pairs(contraction: Contraction, roles: Roles, *, padded: bool = False) -> Roles | None:
    """Return the roles in a tile of pairs, or None if the products of a contraction cannot be computed in pairs.

    One operand has vectors, of a constant or in panels, the other has not. They are different tensors. Both have the
    summed axis, whose extent is even, and pairs along it are or become neighbours in memory. In grouped convolutions,
    it has the channels of a group, and in those of one channel the taps of a line. `padded` says whether plain products
    may still be padded to that.
    """
    vectorized = [operand for operand in contraction.operands if roles.vector.place in operand.axes]
    summed = roles.summed or _channels_of_groups(contraction) or _taps_of_lines(contraction)
    left, right = contraction.operands
    if len(vectorized) != 1 or summed is None or summed.extent < PAIR or left.read == right.read:
        return None
    roles = replace(roles, summed=summed)
    if not vectorized[0].constant and (roles.panel is None or paired(vectorized[0], roles) is None):
        return None
    if roles.lanes not in LANES:
        return None
    if summed.extent % PAIR and not (padded and is_plain(contraction)):
        return None
    operand = broadcast(contraction, roles)
    plain = operand.constant or operand.contiguous(summed)
    return roles if plain and all(summed.place in operand.axes for operand in contraction.operands) else None


def _channels_of_groups(contraction: Contraction) -> Axis | None:
    """Return the reduction axis that an index counts within groups, group · extent + axis, or None.

    Both operands have the groups. Each group is copied by itself, so it must consist of vectors.
    """
    groups = [a for a in contraction.spatial if all(a.place in o.axes for o in contraction.operands)]
    indices = [index for operand in contraction.operands for index in operand.indices]
    analyzer = _tvm.sym.Analyzer()

    def within_groups(axis: Axis) -> bool:
        forms = [axis.variable, *(group.variable * axis.extent + axis.variable for group in groups)]
        using = [index for index in indices if _tvm.uses(index, axis.variable)]
        return all(any(analyzer.can_prove_equal(index, form) for form in forms) for index in using)

    channels = [a for a in contraction.reduction if a.extent > 1 and a.extent % SHORTEST == 0]
    return next((axis for axis in channels if within_groups(axis)), None)


def _taps_of_lines(contraction: Contraction) -> Axis | None:
    """Return the innermost reduction axis if windows slide along it over the last dimension, and all others are points.

    Rows of a matrix may overlap, as those of neighbouring windows do.
    """
    taps = [axis for axis in contraction.reduction if axis.extent > 1]
    axis = taps[-1] if taps else None
    if axis is None or not all(axis.place in o.axes and o.contiguous(axis) for o in contraction.operands):
        return None
    return axis


def broadcast(contraction: Contraction, roles: Roles) -> Operand:
    """Return the operand without vectors."""
    return next(operand for operand in contraction.operands if roles.vector.place not in operand.axes)


def paired(operand: Operand, roles: Roles) -> int | None:
    """Return the dimension of an operand that the reduction axis indexes, or None if it is part of an index."""
    summed = roles.summed
    return next((d for d, i in enumerate(operand.indices) if summed is not None and i.same_as(summed.variable)), None)


def in_pairs(moved: int, paired: int) -> Callable[..., list[Any]]:
    """Return the map of a buffer's indices that moves one dimension last, with pairs along another in each element."""

    def mapped(*i: Any) -> list[Any]:
        rest = [e // PAIR if d == paired else e for d, e in enumerate(i) if d != moved]
        return [*rest, i[moved], i[paired] % PAIR]

    return mapped


def are_given(schedule: Schedule, block: BlockRef) -> bool:
    """Return whether the factors of a block's float32 products are bfloat16, so that pairs round nothing."""
    statement = schedule.get(block)
    written = [region.source for region in statement.writes]
    read = {str(r.source.dtype) for r in statement.reads if not any(r.source.same_as(w) for w in written)}
    return read == {BFLOAT16.name} and {str(source.dtype) for source in written} == {FLOAT32.name}


def mark(schedule: Schedule, loop: LoopRef) -> None:
    """Annotate a loop over a pair."""
    MARK.put(schedule, loop)


def is_marked(schedule: Schedule) -> bool:
    """Return whether a schedule multiplies pairs."""
    return any(map(Pairs.on, _tvm.found(schedule.mod["main"].body, _tvm.tirx.For)))


def rounded(schedule: Schedule) -> bool:
    """Change the type of the copies and packed constants whose pairs a schedule multiplies.

    Returns whether that was possible. Schedules without the annotation are not changed.
    """
    main = schedule.mod["main"]
    loops = [loop for loop in _tvm.found(main.body, _tvm.tirx.For) if Pairs.on(loop)]
    operands = [
        region.source
        for loop in loops
        for block in _tvm.found(loop.body, _tvm.s_tir.SBlock)
        if any(map(_tvm.is_reduction, block.iter_vars))
        for region in block.reads
        if not any(region.source.same_as(written.source) for written in block.writes)
    ]
    for operand in operands:
        if str(operand.dtype) == BFLOAT16.name:
            continue
        writers = [r.block for r in realizes(main.body) if any(w.source.same_as(operand) for w in r.block.writes)]
        if len(writers) != 1:
            return False
        schedule.unsafe_set_dtype(schedule.get_sblock(str(writers[0].name_hint)), 0, BFLOAT16.name)
    return True
