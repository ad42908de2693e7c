"""Accesses to one buffer: bytes, unique bytes, cache lines, stride.

    bytes        = item · iterations
    unique_bytes = item · Π width_d over all loops
    lines        = max(1, iterations / inner · min(1, stride · item / 64))
    unique_lines = max(1, unique_bytes / min(64, contiguous))

`lines` goes by the innermost loop of extent > 1 that moves the access; inner: product of the extents inside it.
contiguous: bytes of the last dimension that is covered whole.
Follows TVM's per_store_feature.cc (group 2), with true regions and strides: TVM's analyser loses them on fused loops.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, equals, maximum, minimum, select
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import Buffer

CACHE_LINE = 64
"""Bytes of a cache line, as TVM assumes on every target."""


def access(view: StoreView, buffer: Buffer) -> dict[str, Expr]:
    """The columns of one buffer that do not concern reuse."""
    item = buffer.item_bytes
    stored = buffer is view.store.target.buffer
    loaded = any(load.buffer is buffer for load in view.store.loads)
    unique = view.elements(buffer, 0) * item
    return {
        "read": const(int(not stored)),
        "write": const(int(stored and not loaded)),
        "read_write": const(int(stored and loaded)),
        "bytes": view.iterations * item,
        "unique_bytes": unique,
        "lines": maximum(1, _lines(view, buffer)),
        "unique_lines": maximum(1, unique / minimum(CACHE_LINE, _contiguous_bytes(view, buffer))),
        "stride": _innermost_stride(view, buffer),
    }


def _lines(view: StoreView, buffer: Buffer) -> Expr:
    lines: Expr = const(1)  # an access that no loop moves
    for level in range(len(view.loops)):  # from the outside, so that the innermost decides last
        stride = view.stride(buffer, level)
        if stride is None:
            continue
        per_step = minimum(1, stride * buffer.item_bytes / CACHE_LINE)
        here = view.iterations / view.inner(level + 1) * per_step
        lines = select(at_least(view.extents[level], 2) * view.moves(buffer, level), here, lines)
    return lines


def _innermost_stride(view: StoreView, buffer: Buffer) -> Expr:
    innermost: Expr = const(0)
    for level in range(len(view.loops)):
        stride = view.stride(buffer, level)
        innermost = select(at_least(view.extents[level], 2), const(0) if stride is None else stride, innermost)
    return innermost


def _contiguous_bytes(view: StoreView, buffer: Buffer) -> Expr:
    """Bytes of the last dimension that is covered whole; 1 where none is."""
    contiguous: Expr = const(1)
    for width, extent in zip(view.widths(buffer, 0), buffer.shape, strict=True):
        contiguous = select(equals(width, extent), extent * buffer.item_bytes, contiguous)
    return contiguous
