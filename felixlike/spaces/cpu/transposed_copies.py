"""Schedule tensors that are written along another dimension than they are read along, in square blocks.

    for n, c, h, w:                      parallel for n, c_0, s_0:
        Y[n, c, h, w] = X[n, h, w, c]  →     for s_1, c_1:
                                                 for c_2 in 16, s_2 in 16: Y[n, c, s] = X[n, s, c]      (in registers)

s stands for h and w, which follow each other in both. A block is read and written in whole vectors
(`codegen/passes/transpose.py`). Element by element, one side would touch a cache line for each element. Where blocks do
not divide a dimension, the last block has a predicate, which that pass turns into a block that begins earlier. The rule
reads indices, never names of operators.
"""

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
"""Upper limit on blocks of a parallel iteration along either dimension, when sampling. Chosen by hand."""


_LONG_BLOCK = 8
"""Elements of a block, along either dimension, from which predicates at the ends of dimensions do not pay. Chosen by
hand."""


def transposed_copies(schedule: Schedule, lanes: int) -> list[Schedule]:
    """Return the schedule, changed, with a copy in square blocks, or [] if the rule does not apply.

    It does not apply if the function computes something else, copies in order, or has dimensions shorter than a vector.
    `lanes` is the largest number of elements of a vector.
    """
    *before, block = blocks_of(schedule)
    if any(not elementwise(schedule, b) or costs(schedule, b) for b in (*before, block)):
        return []
    if not all(is_intermediate(schedule, other) for other in before):
        return []  # several outputs
    for other in before:
        schedule.compute_inline(other)
    statement = schedule.get(block)
    load = getattr(statement.body, "value", None)  # a kernel of TVM's library is a loop
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
    """Return the elements of a block along either dimension.

    This is the largest power of two that divides both extents. If that is short, it is the largest one within both.
    """
    dividing = min(lanes, *(n & -n for n in extents))
    within = min(lanes, power_of_two_below(min(extents)))
    return dividing if dividing >= min(_LONG_BLOCK, within) else within


def _order(indices: Sequence[Any], variables: Sequence[Var]) -> list[int] | None:
    """Return the number of the variable that indexes each dimension of more than one element.

    Returns None if an index is not a variable, or a variable occurs twice.
    """
    moving = [index for index in indices if not isinstance(index, _tvm.tirx.IntImm)]
    numbers = [next((n for n, v in enumerate(variables) if index.same_as(v)), -1) for index in moving]
    return numbers if -1 not in numbers and len(set(numbers)) == len(numbers) else None


def _together(inner: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the last variables of one order that also follow each other in the other order."""
    start = len(inner) - 1
    while start and (inner[start - 1], inner[start]) in pairwise(other):
        start -= 1
    return list(inner[start:])


def _in_blocks(schedule: Schedule, loops: Sequence[LoopRef], size: int) -> list[Any]:
    """Fuse loops and split them into parallel iterations, blocks of an iteration, and elements of a block."""
    whole = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    blocks, element = schedule.split(whole, [None, size])
    outer, block = schedule.split(blocks, schedule.sample_perfect_tile(blocks, 2, _MOST_BLOCKS))
    return [outer, block, element]
