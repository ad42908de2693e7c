"""Keep constant weights in bfloat16 where loading them takes longer than the arithmetic.

    for k: Y[j] += X[k] · W[k, j]  →  for k: Y[j] += X[k] · float32(N[k, j])        N = bfloat16(W), packed once

Input: a tiled schedule. Output: the same schedule with an annotation, which becomes the new type when its constant is
packed. Half as many bytes are loaded, and a shift in the registers makes them float32 again. Sums, activations and
results stay float32. A matrix with one or a few rows of activations takes the time of loading its weights, as in a step
of a language model that generates text.
"""

from __future__ import annotations

import math

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.codegen.annotations import Narrow, Prefetch
from felixlike.frontend.constants import layout_free_parameters, packing_blocks
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS, Device, estimate
from felixlike.spaces.contraction import Contraction
from felixlike.spaces.roles import Roles

ITEM_BYTES = 2
"""Bytes of a narrow weight."""


def can_be_narrow(schedule: Schedule, block: BlockRef) -> bool:
    """Return whether a block's tensors are float32 and one of them is the function's only constant operand."""
    statement = schedule.get(block)
    constants = layout_free_parameters(schedule.mod["main"])
    types = {str(region.source.dtype) for region in (*statement.reads, *statement.writes)}
    return types == {FLOAT32.name} and len(constants) == 1


def pays(schedule: Schedule, contraction: Contraction, roles: Roles, device: Device) -> bool:
    """Return whether narrow weights are estimated to be faster: they are vectorized, larger than the L2 cache, and
    loading them takes longer than the products and the shifts.
    """
    vectorized = any(operand.constant and roles.vector.place in operand.axes for operand in contraction.operands)
    if not vectorized or roles.summed is None:
        return False
    (constant,) = layout_free_parameters(schedule.mod["main"])
    weights = math.prod(int(extent) for extent in constant.shape)
    products = 2 * math.prod(axis.extent for axis in contraction.axes)
    rows = 1 if roles.rows is None else roles.rows.extent
    shifts = 2 * weights * estimate.COSTS.unpacked * -(-rows // (device.unit.registers * 3 // 8))
    wide, narrow = (estimate.moved(size * weights) for size in (4, ITEM_BYTES))
    return 4 * weights > device.l2_bytes and max(products + shifts, narrow) < max(products, wide)


def mark(schedule: Schedule, block: BlockRef) -> None:
    """Annotate the reduction loop of a tiled contraction, so that its constant is packed in bfloat16."""
    loop = next(loop for loop in schedule.get_loops(block) if Prefetch.on(schedule.get(loop)))
    Narrow(PRECISIONS.index(BFLOAT16)).put(schedule, loop)


def is_marked(schedule: Schedule) -> bool:
    """Return whether a schedule's constant is packed in bfloat16."""
    return any(map(Narrow.on, _tvm.found(schedule.mod["main"].body, _tvm.tirx.For)))


def narrowed(schedule: Schedule) -> bool:
    """Change the type of a marked schedule's packed constant, and return whether that was possible.

    Schedules without the annotation are not changed.
    """
    if not is_marked(schedule):
        return True
    blocks = packing_blocks(schedule.mod["main"].body)
    if len(blocks) != 1:
        return False
    schedule.unsafe_set_dtype(schedule.get_sblock(str(blocks[0].name_hint)), 0, BFLOAT16.name)
    return True
