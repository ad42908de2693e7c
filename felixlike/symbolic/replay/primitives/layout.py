"""Replay TransformLayout: the dimensions of a buffer are permuted; a block that writes it alone keeps its loops.

Y[n, k, h, w] = …   →   Y[n, h, w, k] = …
"""

from __future__ import annotations

from felixlike._tvm.typing import Instruction
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState

_KINDS = ("read", "write")


def _transform(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay TransformLayout."""
    block, mapping = instruction.inputs
    index, kind, padding, injective = instruction.attrs
    if padding is not None:
        raise UnsupportedSketch("layouts with padding are not supported", where="TransformLayout")
    state.schedule.transform_layout(
        state.get(block), (_KINDS[int(kind)], int(index)), mapping, assume_injective_transform=bool(injective)
    )


def _transform_block(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay TransformBlockLayout."""
    block, *rest = instruction.inputs
    (mapping,) = rest or instruction.attrs
    state.schedule.transform_block_layout(state.get(block), mapping)
    state.simplify(state.get(block))


PRIMITIVES = {
    "TransformLayout": Primitive(_transform, needs_regions=True),
    "TransformBlockLayout": Primitive(_transform_block, needs_regions=True),
}
