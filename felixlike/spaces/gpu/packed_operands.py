"""Pack a contraction's constants when a model is compiled, in the order in which a GPU's threads copy them.

    for j, k: P[k, j] = W[j, k] if j < 1000 else 0          once, before the first call
    for i, j, k: C[i, j] += A[i, k] · P[k, j]

The main axis of a weight, along which a thread has neighbouring outputs, is the last one in shared memory. In PyTorch's
weights it is the first one, so every block would transpose single elements in every call. Of a packed constant, four
elements are copied at once, asynchronously too, and the padding is part of the constant.
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
    """Pack the constant operands of a contraction where that moves an axis or pads.

    Returns the contraction, and those blocks of `copies` that must still run in every call.
    """
    constants = layout_free_parameters(schedule.mod["main"])
    axes = thread_axes(contraction)
    for operand in contraction.operands:
        source = schedule.get(block).reads[operand.read].source
        copy_block = next((copy for copy in copies if schedule.get(copy).writes[0].source.same_as(source)), None)
        inputs = [source] if copy_block is None else [region.source for region in schedule.get(copy_block).reads]
        turned = axes.turned(operand)
        if len(inputs) != 1 or not any(inputs[0].same_as(constant) for constant in constants):
            continue
        if copy_block is None and turned is None:
            continue
        packing = schedule.cache_read(block, operand.read, "global") if copy_block is None else copy_block
        copies = tuple(copy for copy in copies if copy is not copy_block)
        if turned is not None:
            schedule.transform_layout(packing, ("write", 0), moved_last(turned[1]))
        schedule.annotate(packing, PACKING, True)
    return read_contraction(schedule, block) or contraction, copies
