"""Features counted over every iteration of a scheduled program (`walk.py`).

Input: a sketch and a point. Output: the feature columns of every store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from felixlike.frontend.constants import PACKING
from felixlike.hardware import Device
from felixlike.symbolic import Sketch
from support.oracles.counter import Counter, item
from support.oracles.unfused import kinds_by_trace, unfused
from support.oracles.walk import Aligns, Loop, Store, aligned, lanes_of, walked

_LINE = 64


def count(sketch: Sketch, point: tuple[int, ...], device: Device) -> dict[str, dict[str, float]]:
    """Return block → column → value."""
    func = unfused(sketch, point)
    stores, homes = walked(func, panels=PACKING in str(sketch.trace))
    aligns = aligned(func)
    lanes = lanes_of(sketch.schedule(point), fused_whole=not kinds_by_trace(sketch))
    return {s.block: _row(s, stores[:i], homes, aligns, device, lanes[s.block]) for i, s in enumerate(stores)}


def _row(
    store: Store,
    earlier: list[Store],
    homes: dict[Any, list[Loop]],
    aligns: Mapping[Any, Aligns],
    device: Device,
    lanes: int,
) -> dict[str, float]:
    counter = Counter(store, homes, aligns)
    earlier_counters = [Counter(s, homes, aligns) for s in earlier]
    used_shapes: dict[Any, list[int]] = {}
    for each in [*earlier_counters, counter]:
        for buffer in each.store.elements:
            if buffer in homes:
                box = each.box(buffer, 0)
                grown = [max(a, b) for a, b in zip(used_shapes.get(buffer, box), box, strict=True)]
                # Guarded reads can reach beyond the buffer.
                used_shapes[buffer] = [min(a, int(e)) for a, e in zip(grown, buffer.shape, strict=True)]
    for each in [*earlier_counters, counter]:
        each.whole = used_shapes
    row: dict[str, float] = {"iterations": counter.total}
    for name, capacity in (("l1", device.l1_bytes), ("l2", device.l2_bytes)):
        row[f"traffic_{name}"] = sum(_moved(counter, b, capacity) * counter.item(b) for b in store.elements)
    # Four threads of a warp share the operands of tensor cores.
    shared = 4 if any(loop.on_tensor_cores for loop in store.loops) else 1
    share = {b: 1 if b.same_as(store.target) else shared for b in store.elements}
    row["traffic_registers"] = sum(
        _moved(counter, b, device.register_bytes) * counter.item(b) / share[b] for b in store.elements
    )
    row["moves"] = sum(
        _moved(counter, b, device.register_bytes, lanes, by_vectors=True) / share[b] for b in store.elements
    )
    for slot, buffer in enumerate(list(store.elements)[:5]):
        columns = {**_access(counter, buffer), **_reuse(counter, earlier_counters, buffer)}
        uses = columns["reuse_count"] or 0.5
        for name in ("bytes", "unique_bytes", "lines", "unique_lines"):
            columns[f"{name}_per_reuse"] = columns[name] / uses
        row.update({f"buffer{slot}_{name}": value for name, value in columns.items()})
    return row


def _moved(counter: Counter, buffer: Any, capacity: int, lanes: int = 1, *, by_vectors: bool = False) -> float:
    """Return the elements moved through a cache of `capacity` bytes.

    With `lanes`, return the number of instructions, each of which moves `lanes` neighbouring elements."""
    moved = counter.store.pairs[buffer] / counter.word(buffer) if by_vectors else 1.0
    for level in reversed(range(len(counter.extents))):
        vectorized = counter.inner(level) <= lanes
        if vectorized and counter.stride(buffer, level) < 2:
            continue
        if counter.touched(level + 1) <= capacity:
            moved *= math.prod(counter.box(buffer, level)) / math.prod(counter.box(buffer, level + 1))
        else:
            moved *= counter.extents[level]
    return moved


def _access(counter: Counter, buffer: Any) -> dict[str, float]:
    store, size = counter.store, counter.item(buffer)
    levels = range(len(counter.extents))
    unique = math.prod(counter.box(buffer, 0)) * item(buffer)
    lines = 1.0
    for level in reversed(levels):
        if counter.moved(buffer, level):
            per_step = min(1.0, counter.stride(buffer, level) * size / _LINE)
            lines = counter.total / counter.inner(level + 1) * per_step
            break
    contiguous = 1
    for width, extent in zip(reversed(counter.box(buffer, 0)), reversed(counter.shape(buffer)), strict=True):
        if width == extent:
            contiguous = extent * item(buffer)
            break
    stored, loaded = buffer.same_as(store.target), any(buffer.same_as(b) for b in store.loaded)
    return {
        "read": float(not stored),
        "write": float(stored and not loaded),
        "read_write": float(stored and loaded),
        "bytes": counter.total * size,
        "unique_bytes": unique,
        "lines": max(1.0, lines),
        "unique_lines": max(1.0, unique / min(_LINE, contiguous)),
        "stride": counter.stride(buffer, len(counter.extents) - 1) if counter.extents else 0,
    }


def _reuse(counter: Counter, others: list[Counter], buffer: Any) -> dict[str, float]:
    names = (
        "reuse_loop",
        "reuse_serial",
        "reuse_none",
        "reuse_distance_iterations",
        "reuse_distance_bytes",
        "reuse_count",
    )
    for level in reversed(range(len(counter.extents))):
        if not counter.moved(buffer, level):
            values = (1, 0, 0, counter.inner(level + 1), counter.touched(level + 1), counter.extents[level])
            return dict(zip(names, map(float, values), strict=True))
        loop = counter.store.loops[level]
        sharing = [(o, o.store.loops.index(loop)) for o in others if loop in o.store.loops]
        before = [(o, at) for o, at in sharing if any(buffer.same_as(b) for b in o.store.elements)]
        if before:
            elements = [math.prod(counter.box(buffer, level)), *(math.prod(o.box(buffer, at)) for o, at in before)]
            touched = counter.touched(level) + sum(o.touched(at) for o, at in sharing)
            extent = counter.extents[level]
            values_ = (0.0, 1.0, 0.0, min(elements) / extent, touched / extent, float(len(before)))
            return dict(zip(names, values_, strict=True))
    return dict(zip(names, (0.0, 0.0, 1.0, 0.0, 0.0, 0.0), strict=True))
