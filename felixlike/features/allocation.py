"""Compute the allocation features of the written buffer: its size, and how often it is allocated.

    allocation_outer = product of the extents of the loops around the allocation; 1 for an argument of the function

The features follow TVM's per_store_feature.cc (group 4) with the compacted shape. Bytes include the padding that
aligned strides leave between rows.
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.expression import Expr, mul
from felixlike.symbolic.replay.postprocessors.compact_allocation import allocation_paths


def allocation(view: StoreView) -> dict[str, Expr]:
    """Return the bytes, the elements, and the iterations around and inside the allocation."""
    buffer = view.store.target.buffer
    enclosing_loops = allocation_paths(view.program).get(buffer, ())
    outer = mul(loop.extent for loop in enclosing_loops)
    return {
        "allocation_bytes": buffer.elements * buffer.item_bytes,
        "allocation_elements": mul(buffer.shape) * outer,
        "allocation_outer": outer,
        "allocation_inner": view.iterations / outer,
    }
