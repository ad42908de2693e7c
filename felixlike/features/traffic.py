"""Traffic: bytes that pass between a memory and the next one, if it always held what was used last.

    moved(b, l) = moved(b, l + 1) · ( touched(l + 1) ≤ C ? box(b, l) / box(b, l + 1) : extent(l) )

box(b, l): elements of buffer b that the loops from l inwards touch; touched(l): bytes of the boxes of all the store's
buffers. Between two runs of a loop's body every buffer of the body is touched once, so what the body touches is
still there for the next run if it all fits into the capacity C: only what is new has to come. Otherwise each run
moves everything again. Past the innermost loop one element of each buffer moves. (Stack distances, as Mattson et al.
1970 have them, at the loops only.)

The same for the registers in units of instructions: along a vector loop one instruction moves all elements that lie
side by side, or the same one to all lanes. (Nests that are fused whole and split, and copies that a GPU's threads
share, have no vector loop of their own: there every element counts.) Of what tensor cores multiply, each thread of a
warp loads a quarter, the steps of the reduction that are its own. It takes the place of TVM's arithmetic-intensity
curve (per_store_feature.cc, group 3), whose sample points say nothing of the memories there are.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.hardware import Device
from felixlike.symbolic.expr.comparison import at_most, select
from felixlike.symbolic.expr.expression import Expr, add, const
from felixlike.symbolic.program import Buffer

SHARED_STEPS = 4
"""Threads of a warp that share the steps of a reduction on tensor cores."""


def traffic(view: StoreView, device: Device) -> dict[str, Expr]:
    """Bytes for each memory, and the instructions that move the registers' share."""
    return {
        "traffic_registers": add(_loaded(view, b, device.register_bytes) * b.item_bytes for b in view.buffers),
        "traffic_l1": _bytes(view, device.l1_bytes),
        "traffic_l2": _bytes(view, device.l2_bytes),
        "moves": add(_loaded(view, buffer, device.register_bytes, by_vectors=True) for buffer in view.buffers),
    }


def _loaded(view: StoreView, buffer: Buffer, capacity: int, *, by_vectors: bool = False) -> Expr:
    """What registers have to be filled with, for all threads."""
    moved = _moved(view, buffer, capacity, by_vectors=by_vectors)
    is_operand = view.store.at_once > 1 and buffer is not view.store.target.buffer
    return moved / SHARED_STEPS if is_operand else moved


def _bytes(view: StoreView, capacity: int) -> Expr:
    return add(_moved(view, buffer, capacity) * buffer.item_bytes for buffer in view.buffers)


def _moved(view: StoreView, buffer: Buffer, capacity: int, *, by_vectors: bool = False) -> Expr:
    """Elements, or instructions that move vectors of them."""
    moved: Expr = const(1)
    for level in reversed(range(len(view.loops))):
        grown = view.elements(buffer, level) / view.elements(buffer, level + 1)
        factor = select(at_most(view.touched_bytes(level + 1), capacity), grown, view.extents[level])
        if by_vectors:
            factor = select(view.loops[level].vector * _side_by_side(view, buffer, level), 1, factor)
        moved = moved * factor
    return moved


def _side_by_side(view: StoreView, buffer: Buffer, level: int) -> Expr:
    """The gate that says whether the steps of a loop touch one element after the other, or all the same."""
    stride = view.stride(buffer, level)
    return const(1) if stride is None else at_most(stride, 1)
