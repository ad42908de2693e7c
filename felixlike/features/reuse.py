"""Compute the reuse features of one buffer: kind, count and distance.

From the innermost loop outwards, the first loop of extent > 1 for which one of these holds decides:
- The loop does not move the access, so each iteration uses the same elements again ("loop"). The distance is one run of
  the loops inside it.
- An earlier store in the same loop touches the buffer ("serial"). The distance is one iteration of the loop.

The features follow TVM's per_store_feature.cc (group 2, reuse). For "loop", the bytes between uses are those of this
store alone.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, minimum, select
from felixlike.symbolic.expr.expression import Expr, add, const
from felixlike.symbolic.program import Buffer

_NONE = {
    "reuse_loop": 0,
    "reuse_serial": 0,
    "reuse_none": 1,
    "reuse_distance_iterations": 0,
    "reuse_distance_bytes": 0,
    "reuse_count": 0,
    "uses": 0.5,
}
"""Values without reuse. `uses` is the divisor of `per_reuse`; 0.5 doubles the columns, as TVM does for a count of 0."""


def reuse(view: StoreView, buffer: Buffer) -> dict[str, Expr]:
    """Return the flags, count and distances of the innermost reuse, and `uses` for `per_reuse`."""
    columns: dict[str, Expr] = {name: const(value) for name, value in _NONE.items()}
    for level in range(len(view.loops)):
        wide, moves = at_least(view.extents[level], 2), view.moves(buffer, level)
        for gate, reuse_columns in ((moves, _of_earlier(view, buffer, level)), (1 - moves, _by_loop(view, level))):
            if reuse_columns is not None:
                columns = {name: select(wide * gate, reuse_columns[name], columns[name]) for name in columns}
    return columns


def per_reuse(columns: dict[str, Expr]) -> dict[str, Expr]:
    """Return bytes and lines divided by the number of uses."""
    names = ("bytes", "unique_bytes", "lines", "unique_lines")
    return {f"{name}_per_reuse": columns[name] / columns["uses"] for name in names}


def _of_earlier(view: StoreView, buffer: Buffer, level: int) -> dict[str, Expr] | None:
    """Return the reuse of elements that earlier stores in the same loop touched; None if there is none."""
    stores_in_loop = [v for v in view.earlier if view.loops[level] in v.loops]
    stores_of_buffer = [v for v in stores_in_loop if buffer in v.buffers]
    return _serially(view, buffer, level, stores_in_loop, stores_of_buffer) if stores_of_buffer else None


def _by_loop(view: StoreView, level: int) -> dict[str, Expr]:
    """Return the reuse by a loop that does not move the access."""
    return {
        "reuse_loop": const(1),
        "reuse_serial": const(0),
        "reuse_none": const(0),
        "reuse_distance_iterations": view.inner(level + 1),
        "reuse_distance_bytes": view.touched_bytes(level + 1),
        "reuse_count": view.extents[level],
        "uses": view.extents[level],
    }


def _serially(
    view: StoreView, buffer: Buffer, level: int, sharing: list[StoreView], before: list[StoreView]
) -> dict[str, Expr]:
    """Return the reuse of elements that the stores `before` touched in the loop at `level`."""
    loop, extent = view.loops[level], view.extents[level]
    elements = view.elements(buffer, level)
    for other in before:
        elements = minimum(elements, other.elements(buffer, other.loops.index(loop)))
    touched = add([view.touched_bytes(level), *(v.touched_bytes(v.loops.index(loop)) for v in sharing)])
    return {
        "reuse_loop": const(0),
        "reuse_serial": const(1),
        "reuse_none": const(0),
        "reuse_distance_iterations": elements / extent,
        "reuse_distance_bytes": touched / extent,
        "reuse_count": const(len(before)),
        "uses": const(len(before)),
    }
