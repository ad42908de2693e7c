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
from felixlike.frontend.constants import EXACT, layout_free_parameters, packing_blocks
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS, Device, Form, estimate
from felixlike.spaces.contraction import Contraction, Operand, elements
from felixlike.spaces.cpu import bfloat16_pairs
from felixlike.spaces.cpu.matrix_tiles import matrix_tile
from felixlike.spaces.roles import Roles

ITEM_BYTES = 2
"""Bytes of a narrow weight."""


def may_round(schedule: Schedule, block: BlockRef, device: Device) -> bool:
    """Return whether a block's products may be rounded: the precision says so, and its tensors are float32.

    Functions that need all digits are annotated.
    """
    attributes = schedule.mod["main"].attrs
    if attributes and EXACT in attributes:
        return False
    statement = schedule.get(block)
    types = {str(region.source.dtype) for region in (*statement.reads, *statement.writes)}
    return device.precision == BFLOAT16.name and types == {FLOAT32.name}


def faster_form(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, device: Device
) -> Form | None:
    """Return the form that is estimated to be fastest, or None if that is float32.

    Of two forms that take the same time, it is the one that rounds less.
    """
    times = _times(schedule, block, contraction, roles, device)
    fastest = min(times, key=lambda form: times[form])
    return fastest if times[fastest] < times[None] else None


def _times(
    schedule: Schedule, block: BlockRef, contraction: Contraction, roles: Roles, device: Device
) -> dict[Form | None, float]:
    """Return the estimated time of each possible form, in floating-point operations; None is float32.

    It is the larger one of the arithmetic and of the time of loading weights that are larger than the L2 cache.
    """
    weights = sum(math.prod(int(extent) for extent in p.shape) for p in layout_free_parameters(schedule.mod["main"]))
    products = 2.0 * math.prod(axis.extent for axis in contraction.axes)
    far = 4 * weights > device.l2_bytes
    wide, narrow = (estimate.moved(size * weights) if far else 0.0 for size in (4, ITEM_BYTES))
    times: dict[Form | None, float] = {None: max(products, wide)}
    vectorized = any(operand.constant and roles.vector.place in operand.axes for operand in contraction.operands)
    if roles.summed is not None and vectorized and far and len(layout_free_parameters(schedule.mod["main"])) == 1:
        rows = 1 if roles.rows is None else roles.rows.extent
        shifts = 2 * weights * estimate.COSTS.unpacked * -(-rows // (device.unit.registers * 3 // 8))
        times[Form.WEIGHTS] = max(products + shifts, narrow)
    in_pairs = bfloat16_pairs.roles_in_pairs(contraction, roles, padded=True)
    matrix = None if in_pairs is None else matrix_tile(contraction, in_pairs, device, padded=True)
    if in_pairs is not None and (device.multiplies_pairs or (device.multiplies_tiles and matrix is not None)):
        conversions = sum(_conversion(schedule, block, contraction, o) for o in contraction.operands if not o.constant)
        rate = bfloat16_pairs.PAIR if matrix is None else matrix.times
        times[Form.PAIRS] = max(products / rate + conversions, narrow)
    return times


def _conversion(schedule: Schedule, block: BlockRef, contraction: Contraction, operand: Operand) -> float:
    """Return the time that a copy of an operand in bfloat16 adds, in floating-point operations.

    The tiled float32 schedule may copy the operand, too.
    """
    source = schedule.get(block).reads[operand.read].source
    in_place = any(source.same_as(parameter) for parameter in schedule.mod["main"].params)
    cost = estimate.COSTS.rounded - (0.0 if in_place else estimate.COSTS.copied)
    return 2 * elements(contraction, operand) * cost


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
