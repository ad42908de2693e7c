"""TVM's entries on buffers (57–146): five buffers a row, 18 entries each, and the bytes touched at every loop.

    unique bytes  = item · Π width_d over all loops, widths by TVM's interval arithmetic
    lines         = max(1, iterations / inner · min(1, stride · item / 64))
    unique lines  = max(1, unique bytes / min(64, contiguous))

stride: of the innermost loop with a coefficient in the buffer's indices; inner: product of the extents inside it;
contiguous: bytes of the last dimension that is covered whole, 1 without one. Widths and coefficients are TVM's own
(`written`), which on fused loops are not the true ones. A buffer that is read and written goes by the indices of the
write. Reuse is by the innermost loop that either no index uses, or under which an earlier store touched the buffer too.
Buffers stand by falling lines, then falling bytes, then names; missing ones are zeros. Entries are NaN
- of stores whose indices TVM may write in several ways, that touch a guarded buffer, or read one element of a
  dimension under a condition;
- on the bytes between uses, where such a store came before under the same loop;
- where two buffers are alike in lines, bytes and name, as far as their entries differ.
Follows TVM's per_store_feature.cc (group 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from felixlike.symbolic.program import Buffer
from support.tvm_view.causes import Cause
from support.tvm_view.loops import LoweredLoop
from support.tvm_view.lowered import LoweredStore
from support.tvm_view.written import Written, bounds, coefficient

PER_BUFFER = 18
"""Entries of a buffer."""

SLOTS = 5
"""Buffers described in a row."""

_LINE = 64


class Touched:
    """What the stores so far touched under each loop: for each buffer, the elements of each store in turn."""

    def __init__(self) -> None:
        self._elements: dict[LoweredLoop, dict[Buffer, list[float]]] = {}

    def note(self, loop: LoweredLoop, buffer: Buffer, elements: float) -> None:
        """One more store touches elements of a buffer under a loop."""
        self._elements.setdefault(loop, {}).setdefault(buffer, []).append(elements)

    def elements(self, loop: LoweredLoop, buffer: Buffer) -> list[float]:
        """One number a store."""
        return self._elements[loop][buffer]

    def bytes(self, loop: LoweredLoop) -> float:
        """Of all buffers and all stores."""
        return sum(sum(found) * buffer.item_bytes for buffer, found in self._elements[loop].items())


@dataclass(slots=True)
class _Use:
    """How a store uses one buffer.

    indices: of its accesses, one row an access.  elements: touched while the loops from a level inwards run, one number
    a level, NaN where unknown.  widths: of the box that all loops touch."""

    buffer: Buffer
    read: bool
    written: bool
    indices: tuple[tuple[Written, ...], ...]
    elements: list[float]
    widths: list[int]


@dataclass(frozen=True, slots=True)
class BufferEntries:
    """entries: 90 numbers.  touched: bytes of all buffers while the loops from a level inwards run, one a level.
    cause: why all of them are NaN; None where they are not.  tied: entries that are NaN since buffers are alike."""

    entries: list[float]
    touched: list[float]
    cause: Cause | None = None
    tied: frozenset[int] = frozenset()


def buffer_entries(store: LoweredStore, shape: Callable[[Buffer], tuple[int, ...]], touched: Touched) -> BufferEntries:
    """The entries of one store; `touched` holds those before it, and gets its own.

    shape: of a buffer where it is allocated."""
    uses = [_use(store, buffer) for buffer in store.places]
    cause = store.cause
    if cause is None and store.guarded:
        cause = Cause.GUARDS
    if cause is None and not store.said and any(_settled(use, shape(use.buffer)) for use in uses):
        cause = Cause.SETTLED
    for use in uses:
        if cause is not None:
            use.elements = [math.nan] * len(use.elements)
    for level, loop in enumerate(store.loops):
        for use in uses:
            touched.note(loop, use.buffer, use.elements[level])
    levels = range(len(store.loops))
    bytes_touched = [sum(u.elements[i] * u.buffer.item_bytes for u in uses) for i in levels]
    if cause is not None:
        return BufferEntries([math.nan] * (SLOTS * PER_BUFFER), bytes_touched, cause)
    found = sorted((_entries(store, use, shape(use.buffer), uses, touched) for use in uses), key=lambda pair: pair[0])
    entries: list[float] = []
    tied: set[int] = set()
    for _, alike in groupby(found, key=lambda pair: pair[0]):
        blocks = [numbers for _, numbers in alike]
        differ = [len(set(column)) > 1 for column in zip(*blocks, strict=True)]
        for _ in blocks:
            tied |= {len(entries) + i for i, apart in enumerate(differ) if apart}
            entries += [math.nan if apart else number for number, apart in zip(blocks[0], differ, strict=True)]
    entries += [0.0] * (SLOTS * PER_BUFFER)
    return BufferEntries(entries[: SLOTS * PER_BUFFER], bytes_touched, tied=frozenset(tied))


def _settled(use: _Use, shape: tuple[int, ...]) -> bool:
    """Whether a condition leaves one value of an index, so that TVM writes that value: a moving index of a dimension of
    one element can only be read under such a condition."""
    return any(
        extent == 1 and index.atoms for access in use.indices for index, extent in zip(access, shape, strict=True)
    )


def _use(store: LoweredStore, buffer: Buffer) -> _Use:
    indices = store.places[buffer]
    running: dict[str, int] = {}
    elements: list[float] = []
    widths = [1] * len(buffer.shape)
    for loop in reversed(store.loops):
        running[loop.name] = loop.extent
        widths = [_width(column, running) for column in zip(*indices, strict=True)]
        elements.append(max(0, _wrapped(math.prod(widths))))
    return _Use(buffer, buffer in store.loads, buffer is store.store.target.buffer, indices, elements[::-1], widths)


def _width(indices: Iterable[Written], running: dict[str, int]) -> int:
    ends = [bounds(index, running) for index in indices]
    return _wrapped(max(high for _, high in ends) - min(low for low, _ in ends) + 1)


def _wrapped(number: int) -> int:
    """As 64 bits hold it; an index that is loaded may be anything."""
    return (number + 2**63) % 2**64 - 2**63


def _entries(
    store: LoweredStore, use: _Use, shape: tuple[int, ...], uses: Sequence[_Use], touched: Touched
) -> tuple[tuple[float, float, str], list[float]]:
    """(what to sort by, the 18 entries)."""
    item, iterations = use.buffer.item_bytes, store.iterations
    moved = float(item * iterations)
    stride, level = _stride(store, use, shape)
    if store.loops:
        unique = float(use.elements[0] * item)
        inner = _inner(store, level + 1)
        lines = max(1.0, iterations / inner * min(1.0, stride * item / _LINE))
        unique_lines = max(1.0, unique / min(_LINE, _contiguous(use, shape)))
    else:
        unique = lines = unique_lines = 1.0
    kind, iterations_apart, bytes_apart, count = _reuse(store, use, uses, touched)
    uses_or_half = count or 0.5
    numbers = [
        float(use.read and not use.written),
        float(use.written and not use.read),
        float(use.read and use.written),
        *map(_log, (moved, unique, lines, unique_lines)),
        *(float(kind == k) for k in ("loop", "serial", "none")),
        *map(_log, (iterations_apart, bytes_apart, count)),
        *(_log(x / uses_or_half) for x in (moved, unique, lines, unique_lines)),
        _log(stride if level == len(store.loops) - 1 else 0),
    ]
    return (-lines, -moved, use.buffer.name), numbers


def _stride(store: LoweredStore, use: _Use, shape: tuple[int, ...]) -> tuple[int, int]:
    """(elements, level) of the innermost loop that moves the buffer as TVM sees it; (0, -1) without one."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    for level in reversed(range(len(store.loops))):
        found = [_step(indices, steps, store.loops[level].name) for indices in use.indices]
        smallest = min((step for step in found if step is not None), default=0)
        if smallest:
            return smallest, level
    return 0, -1


def _step(indices: tuple[Written, ...], steps: Sequence[int], name: str) -> int | None:
    """Elements by the rightmost dimension that a loop moves; None where it moves none."""
    for index, step in zip(reversed(indices), reversed(steps), strict=True):
        factor = coefficient(index, name)
        if factor:
            return abs(factor) * step
    return None


def _contiguous(use: _Use, shape: tuple[int, ...]) -> int:
    for width, extent in zip(reversed(use.widths), reversed(shape), strict=True):
        if width == extent:
            return extent * use.buffer.item_bytes
    return 1


def _reuse(store: LoweredStore, use: _Use, uses: Sequence[_Use], touched: Touched) -> tuple[str, float, float, int]:
    """(kind, iterations and bytes between uses, number of uses)."""
    moving = frozenset[str]().union(*(index.atoms for indices in use.indices for index in indices))
    for level in reversed(range(len(store.loops))):
        loop = store.loops[level]
        if loop.name not in moving:
            if level == len(store.loops) - 1:
                apart: float = sum(u.buffer.item_bytes for u in uses)
            else:
                apart = touched.bytes(store.loops[level + 1])
            return "loop", float(_inner(store, level + 1)), apart, loop.extent
        earlier = touched.elements(loop, use.buffer)
        if len(earlier) > 1:
            return "serial", min(earlier) / loop.extent, touched.bytes(loop) / loop.extent, len(earlier) - 1
    return "none", 0.0, 0.0, 0


def _inner(store: LoweredStore, level: int) -> int:
    return math.prod(loop.extent for loop in store.loops[level:])


def _log(value: float) -> float:
    return math.log2(abs(value) + 1)
