"""Allocation of the written buffer: its size where it is allocated, and how often that happens.

    allocation_outer = product of the extents of the loops around the allocation; 1 for an argument of the function

Follows TVM's per_store_feature.cc (group 4) with the compacted shape; bytes are those that are allocated, with the room
that aligned steps leave between rows.
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.expression import Expr, mul
from felixlike.symbolic.replay.postprocessors.compact_allocation import allocation_paths


def allocation(view: StoreView) -> dict[str, Expr]:
    """Bytes, elements, and the iterations around and inside the allocation."""
    buffer = view.store.target.buffer
    around = allocation_paths(view.program).get(buffer, ())
    outer = mul(loop.extent for loop in around)
    return {
        "allocation_bytes": buffer.elements * buffer.item_bytes,
        "allocation_elements": mul(buffer.shape) * outer,
        "allocation_outer": outer,
        "allocation_inner": view.iterations / outer,
    }
