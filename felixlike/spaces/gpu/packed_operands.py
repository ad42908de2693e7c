"""Constants of a contraction on a GPU laid out when a model is compiled, as its threads copy them.

    for j, k: P[k, j] = W[j, k] if j < 1000 else 0          once, before the first call
    for i, j, k: C[i, j] += A[i, k] · P[k, j]

A weight's main axis, along which a thread has neighbouring outputs, is the last one in shared memory. PyTorch's
weights have it first: copied as they lie, single elements are turned round by every block in every call. Packed, four
are copied at once, asynchronously too, and padding is a part of the constant.
"""

from __future__ import annotations

from typing import Any

from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.frontend.constants import PACKING, layout_free_parameters
from felixlike.spaces.contraction import Contraction, read_contraction
from felixlike.spaces.gpu.thread_axes import moved_last, thread_axes


def pack_operands(
    schedule: Schedule, block: BlockRef, contraction: Contraction, copies: tuple[Any, ...]
) -> tuple[Contraction, tuple[Any, ...]]:
    """The contraction with its constant operands packed, where that moves an axis or pads, and those of the blocks
    that compute operands which are still to be done in every call."""
    constants = layout_free_parameters(schedule.mod["main"])
    axes = thread_axes(contraction)
    for operand in contraction.operands:
        source = schedule.get(block).reads[operand.read].source
        own = next((copy for copy in copies if schedule.get(copy).writes[0].source.same_as(source)), None)
        given = [source] if own is None else [region.source for region in schedule.get(own).reads]
        turned = axes.turned(operand)
        if len(given) != 1 or not any(given[0].same_as(constant) for constant in constants):
            continue
        if own is None and turned is None:
            continue
        packing = schedule.cache_read(block, operand.read, "global") if own is None else own
        copies = tuple(copy for copy in copies if copy is not own)
        if turned is not None:
            schedule.transform_layout(packing, ("write", 0), moved_last(turned[1]))
        schedule.annotate(packing, PACKING, True)
    return read_contraction(schedule, block) or contraction, copies
