"""Transposed copies: tensors written along another dimension than they are read along, in square blocks.

    for n, c, h, w:                      parallel for n, c_0, s_0:
        Y[n, c, h, w] = X[n, h, w, c]  →     for s_1, c_1:
                                                 for c_2 in 16, s_2 in 16: Y[n, c, s] = X[n, s, c]      (in registers)

s: h and w, which follow each other in both. A block is read and written in whole vectors
(`codegen/passes/transpose.py`); element by element, one side would touch a cache line for each. Of a dimension that
blocks do not divide, the last one is under a test, which that pass turns into a block that begins earlier. Works on
indices, never on names of operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import LoopRef, Schedule, Var
from felixlike.codegen.annotations import Transpose
from felixlike.hardware.vectors import SHORTEST, power_of_two_below
from felixlike.spaces.blocks import blocks_of, costs, elementwise, is_intermediate

_MOST_BLOCKS = 64
"""Blocks of a parallel iteration along either dimension at most: a bound of what is sampled, chosen by hand."""


_LONG = 8
"""Elements of blocks that are long enough for tests at the ends of dimensions not to pay.  Chosen by hand."""


def transposed_copies(schedule: Schedule, lanes: int) -> list[Schedule]:
    """The schedule, changed, with a copy done in square blocks; empty where a function does something else, copies in
    order, or dimensions are shorter than vectors.  lanes: elements of a vector at most."""
    *before, block = blocks_of(schedule)
    if any(not elementwise(schedule, b) or costs(schedule, b) for b in (*before, block)):
        return []
    if not all(is_intermediate(schedule, other) for other in before):
        return []  # several outputs
    for other in before:
        schedule.compute_inline(other)
    statement = schedule.get(block)
    load = getattr(statement.body, "value", None)  # a kernel of TVM's own is a loop
    if not isinstance(load, _tvm.ir.TensorLoad) or str(load.source.dtype) == "bool":
        return []
    variables = [iterator.var for iterator in statement.iter_vars]
    read, written = _order(load.indices, variables), _order(statement.body.indices, variables)
    if read is None or written is None or not read or sorted(read) != sorted(written) or read[-1] == written[-1]:
        return []
    rows, columns = _together(read, written), _together(written, read)
    loops = schedule.get_loops(block)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    sizes = [prod(extents[place] for place in group) for group in (rows, columns)]
    size = _size(sizes, lanes)
    if size < SHORTEST:
        return []
    others = [loops[p] for p in range(len(loops)) if p not in (*rows, *columns)]
    schedule.reorder(*others, *(loops[p] for p in rows), *(loops[p] for p in columns))
    parts = [_in_blocks(schedule, [loops[p] for p in group], size) for group in (rows, columns)]
    (row_outer, row_block, row), (column_outer, column_block, column) = parts
    schedule.reorder(row_outer, column_outer, column_block, row_block, row, column)
    schedule.parallel(schedule.fuse(*others, row_outer, column_outer))
    Transpose(size).put(schedule, row)
    return [schedule]


def _size(extents: Sequence[int], lanes: int) -> int:
    """Elements of a block along either dimension: the largest power of two that divides both, or where that is short,
    that lies within both."""
    dividing = min(lanes, *(n & -n for n in extents))
    within = min(lanes, power_of_two_below(min(extents)))
    return dividing if dividing >= min(_LONG, within) else within


def _order(indices: Sequence[Any], variables: Sequence[Var]) -> list[int] | None:
    """The number of the variable that each dimension is walked through by, without those of one element; None where
    some index is no variable, or one comes twice."""
    moving = [index for index in indices if not isinstance(index, _tvm.tirx.IntImm)]
    found = [next((n for n, v in enumerate(variables) if index.same_as(v)), -1) for index in moving]
    return found if -1 not in found and len(set(found)) == len(found) else None


def _together(inner: Sequence[int], other: Sequence[int]) -> list[int]:
    """The last variables of one order that follow each other in the other one, too."""
    start = len(inner) - 1
    while start and (inner[start - 1], inner[start]) in pairwise(other):
        start -= 1
    return list(inner[start:])


def _in_blocks(schedule: Schedule, loops: Sequence[LoopRef], size: int) -> list[Any]:
    """Loops as one, split into parallel iterations, blocks of one, and elements of a block."""
    whole = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    blocks, element = schedule.split(whole, [None, size])
    outer, block = schedule.split(blocks, schedule.sample_perfect_tile(blocks, 2, _MOST_BLOCKS))
    return [outer, block, element]
