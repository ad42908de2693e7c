"""Compute the access features of one buffer: bytes, unique bytes, cache lines and stride.

    bytes        = item · iterations
    unique_bytes = item · Π width_d over all loops
    lines        = max(1, iterations / inner · min(1, stride · item / 64))
    unique_lines = max(1, unique_bytes / min(64, contiguous))

`lines` uses the innermost loop of extent > 1 that moves the access; `inner` is the product of the extents inside it.
`contiguous` is the bytes of the last dimension that is covered whole.
The formulas follow TVM's per_store_feature.cc (group 2), with exact regions and strides: TVM's analyser loses them on
fused loops.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, equals, maximum, minimum, select
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import Buffer

CACHE_LINE = 64
"""Size of a cache line in bytes, as TVM assumes on every target."""


def access(view: StoreView, buffer: Buffer) -> dict[str, Expr]:
    """Return the columns of one buffer, except those for reuse."""
    item = view.item_bytes(buffer)
    stored = buffer is view.store.target.buffer
    loaded = any(load.buffer is buffer for load in view.store.loads)
    unique_bytes = view.elements(buffer, 0) * buffer.item_bytes
    return {
        "read": const(int(not stored)),
        "write": const(int(stored and not loaded)),
        "read_write": const(int(stored and loaded)),
        "bytes": view.iterations * item,
        "unique_bytes": unique_bytes,
        "lines": maximum(1, _lines(view, buffer)),
        "unique_lines": maximum(1, unique_bytes / minimum(CACHE_LINE, _contiguous_bytes(view, buffer))),
        "stride": _innermost_stride(view, buffer),
    }


def _lines(view: StoreView, buffer: Buffer) -> Expr:
    """Return the cache lines that a store's accesses to a buffer touch, repeats included."""
    lines: Expr = const(1)  # the value if no loop moves the access
    for level in range(len(view.loops)):  # outermost first, so that the innermost loop decides
        stride = view.stride(buffer, level)
        if stride is None:
            continue
        per_step = minimum(1, stride * view.item_bytes(buffer) / CACHE_LINE)
        lines_at_level = view.iterations / view.inner(level + 1) * per_step
        lines = select(at_least(view.extents[level], 2) * view.moves(buffer, level), lines_at_level, lines)
    return lines


def _innermost_stride(view: StoreView, buffer: Buffer) -> Expr:
    """Return the stride of the innermost loop of extent > 1, in words; 0 if that loop does not move the access."""
    innermost: Expr = const(0)
    for level in range(len(view.loops)):
        stride = view.stride(buffer, level)
        innermost = select(at_least(view.extents[level], 2), const(0) if stride is None else stride, innermost)
    return innermost


def _contiguous_bytes(view: StoreView, buffer: Buffer) -> Expr:
    """Return the bytes of the last dimension that is covered whole; 1 if there is none."""
    contiguous: Expr = const(1)
    for width, extent in zip(view.widths(buffer, 0), buffer.shape, strict=True):
        contiguous = select(equals(width, extent), extent * buffer.item_bytes, contiguous)
    return contiguous
