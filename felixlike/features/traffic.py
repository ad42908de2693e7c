"""Traffic: bytes that pass between a cache and what is behind it, if the cache kept what fits.

    traffic(C) = touched(l) · iterations outside l,   l: the outermost level whose touched bytes fit into C

touched(l): bytes of the boxes of all the store's buffers while loops l… run; past the innermost loop it is one
element of each. It takes the place of TVM's arithmetic-intensity curve (per_store_feature.cc, group 3), whose sample
points say nothing of the caches there are; capacities come from the device description.
"""

from __future__ import annotations

from felixlike.features.view import StoreView
from felixlike.symbolic.expression import Expr, at_most, select


def traffic(view: StoreView, capacities: tuple[int, ...]) -> dict[str, Expr]:
    """One column for each capacity in bytes, smallest cache first."""
    return {f"traffic_l{level}": _traffic(view, capacity) for level, capacity in enumerate(capacities, 1)}


def _traffic(view: StoreView, capacity: int) -> Expr:
    innermost = len(view.loops)
    moved = view.touched_bytes(innermost) * view.iterations
    for level in reversed(range(innermost)):
        touched = view.touched_bytes(level)
        moved = select(at_most(touched, capacity), touched * view.outer(level), moved)
    return moved
