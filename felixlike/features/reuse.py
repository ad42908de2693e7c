"""Reuse of one buffer: its kind, count and distance.

From the innermost loop outwards, the first loop of extent > 1 at which one of these holds decides:
- it does not move the access: the same elements are used again in each of its iterations ("loop"); the distance is one
  run of the loops inside it;
- an earlier store in the same loop touches the buffer ("serial"); the distance is one iteration of the loop.

Follows TVM's per_store_feature.cc (group 2, reuse). The bytes between uses are those of this store alone for "loop".
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
"""Without reuse.  uses: the divisor of `per_reuse`; ½ doubles, as TVM has it for a count of 0."""


def reuse(view: StoreView, buffer: Buffer) -> dict[str, Expr]:
    """Flags, count and distances of the innermost reuse, and `uses` for `per_reuse`."""
    found: dict[str, Expr] = {name: const(value) for name, value in _NONE.items()}
    for level in range(len(view.loops)):
        wide, moves = at_least(view.extents[level], 2), view.moves(buffer, level)
        for gate, here in ((moves, _of_earlier(view, buffer, level)), (1 - moves, _by_loop(view, level))):
            if here is not None:
                found = {name: select(wide * gate, here[name], found[name]) for name in found}
    return found


def per_reuse(columns: dict[str, Expr]) -> dict[str, Expr]:
    """Bytes and lines for each use."""
    names = ("bytes", "unique_bytes", "lines", "unique_lines")
    return {f"{name}_per_reuse": columns[name] / columns["uses"] for name in names}


def _of_earlier(view: StoreView, buffer: Buffer, level: int) -> dict[str, Expr] | None:
    """Reuse of what earlier stores in the same loop touched; None where there are none."""
    sharing = [v for v in view.earlier if view.loops[level] in v.loops]
    before = [v for v in sharing if buffer in v.buffers]
    return _serially(view, buffer, level, sharing, before) if before else None


def _by_loop(view: StoreView, level: int) -> dict[str, Expr]:
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
