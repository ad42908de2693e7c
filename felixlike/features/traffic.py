"""Estimate memory traffic: bytes that pass between a memory and the next one, if it held the most recently used data.

    moved(b, l) = moved(b, l + 1) · ( touched(l + 1) ≤ C ? box(b, l) / box(b, l + 1) : extent(l) )

`box(b, l)` is the elements of buffer b that the loops from l inwards touch. `touched(l)` is the bytes of the boxes of
all the store's buffers. Between two runs of a loop's body, every buffer of the body is touched once. If everything that
the body touches fits into the capacity C, it is still there for the next run, and only new elements move. Otherwise
each run moves everything again. Inside the innermost loop, one element of each buffer moves. These are stack distances
(Mattson et al. 1970), at loops only.

`moves` applies the same formula to the registers and counts instructions: along a vector loop, one instruction moves
all elements that are contiguous, or broadcasts one element to all lanes. Fully fused nests and cooperative fetches have
no vector loop of their own, so every element counts there. On tensor cores, each thread of a warp loads a quarter of
the operands: its own steps of the reduction. Of bfloat16 numbers, a pair is moved as one element. These features
replace TVM's arithmetic-intensity curve (per_store_feature.cc, group 3), whose sample points do not depend on the
device's memories.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.hardware import Device
from felixlike.symbolic.expr.comparison import at_most, select
from felixlike.symbolic.expr.expression import Expr, add, const
from felixlike.symbolic.program import Buffer

SHARED_STEPS = 4
"""Number of threads of a warp that share the steps of a reduction on tensor cores."""


def traffic(view: StoreView, device: Device) -> dict[str, Expr]:
    """Return the bytes that each memory moves, and the instructions that fill registers."""
    return {
        "traffic_registers": add(_loaded(view, b, device.register_bytes) * view.item_bytes(b) for b in view.buffers),
        "traffic_l1": _bytes(view, device.l1_bytes),
        "traffic_l2": _bytes(view, device.l2_bytes),
        "moves": add(_loaded(view, buffer, device.register_bytes, by_vectors=True) for buffer in view.buffers),
    }


def _loaded(view: StoreView, buffer: Buffer, capacity: int, *, by_vectors: bool = False) -> Expr:
    """Return the elements, or vector instructions, that fill registers for all threads."""
    moved = _moved(view, buffer, capacity, by_vectors=by_vectors)
    is_operand = view.store.at_once > 1 and buffer is not view.store.target.buffer
    return moved / SHARED_STEPS if is_operand else moved


def _bytes(view: StoreView, capacity: int) -> Expr:
    """Return the bytes that a memory of this capacity moves."""
    return add(_moved(view, buffer, capacity) * view.item_bytes(buffer) for buffer in view.buffers)


def _moved(view: StoreView, buffer: Buffer, capacity: int, *, by_vectors: bool = False) -> Expr:
    """Return the elements, or the vector instructions, that a memory of this capacity moves."""
    moved: Expr = const(view.words(buffer) if by_vectors else 1)
    for level in reversed(range(len(view.loops))):
        new_elements = view.elements(buffer, level) / view.elements(buffer, level + 1)
        factor = select(at_most(view.touched_bytes(level + 1), capacity), new_elements, view.extents[level])
        if by_vectors:
            factor = select(view.loops[level].vector * _side_by_side(view, buffer, level), 1, factor)
        moved = moved * factor
    return moved


def _side_by_side(view: StoreView, buffer: Buffer, level: int) -> Expr:
    """Return the gate of whether a loop's steps touch contiguous elements, or all the same element."""
    stride = view.stride(buffer, level)
    return const(1) if stride is None else at_most(stride, 1)
