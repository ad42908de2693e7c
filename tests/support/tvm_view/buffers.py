"""TVM's entries on buffers (57–146): five buffers per row with 18 entries each, and the bytes touched at every loop.

    unique bytes  = item · Π width_d over all loops, widths by TVM's interval arithmetic
    lines         = max(1, iterations / inner · min(1, stride · item / 64))
    unique lines  = max(1, unique bytes / min(64, contiguous))

stride: of the innermost loop with a coefficient in the buffer's indices; inner: product of the extents inside it;
contiguous: bytes of the last dimension that is covered completely, 1 without one. Widths and coefficients are TVM's
(`written`); for fused loops they differ from the true ones. A buffer that is read and written uses the indices of the
write. Reuse is at the innermost loop that no index uses, or under which an earlier store touched the buffer.
Buffers are sorted by decreasing lines, then decreasing bytes, then name; missing ones are zeros. Entries are NaN
- for stores whose indices TVM may write in several ways, that touch a guarded buffer, or that read a dimension of one
  element under a condition;
- on the bytes between uses, after such a store under the same loop;
- where two buffers have equal lines, bytes and name, but different entries.
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
"""Number of entries per buffer."""

SLOTS = 5
"""Number of buffers per row."""

_LINE = 64


class Touched:
    """Elements that the stores so far touched under each loop, in a list with one number per store for each buffer."""

    def __init__(self) -> None:
        self._elements: dict[LoweredLoop, dict[Buffer, list[float]]] = {}

    def note(self, loop: LoweredLoop, buffer: Buffer, elements: float) -> None:
        """Record that one more store touches elements of a buffer under a loop."""
        self._elements.setdefault(loop, {}).setdefault(buffer, []).append(elements)

    def elements(self, loop: LoweredLoop, buffer: Buffer) -> list[float]:
        """Return the elements, one number per store."""
        return self._elements[loop][buffer]

    def bytes(self, loop: LoweredLoop) -> float:
        """Return the bytes of all buffers and all stores under a loop."""
        return sum(sum(numbers) * buffer.item_bytes for buffer, numbers in self._elements[loop].items())


@dataclass(slots=True)
class _Use:
    """One store's use of one buffer.

    Attributes:
        indices: indices of its accesses, one row per access.
        elements: elements touched by the loops from a level inwards, one number per level, NaN where unknown.
        widths: widths of the box that all loops touch."""

    buffer: Buffer
    read: bool
    written: bool
    indices: tuple[tuple[Written, ...], ...]
    elements: list[float]
    widths: list[int]


@dataclass(frozen=True, slots=True)
class BufferEntries:
    """Entries of one store.

    Attributes:
        entries: 90 numbers.
        touched: bytes of all buffers touched by the loops from a level inwards, one number per level.
        cause: why all entries are NaN; None if they are known.
        tied: entries that are NaN because two buffers sort equal."""

    entries: list[float]
    touched: list[float]
    cause: Cause | None = None
    tied: frozenset[int] = frozenset()


def buffer_entries(store: LoweredStore, shape: Callable[[Buffer], tuple[int, ...]], touched: Touched) -> BufferEntries:
    """Return the entries of one store, and add the store to `touched`.

    Args:
        store: the store.
        shape: returns the allocated shape of a buffer.
        touched: what earlier stores touched."""
    uses = [_use(store, buffer) for buffer in store.places]
    cause = store.cause
    if cause is None and store.guarded:
        cause = Cause.GUARDS
    if cause is None and not store.said and any(_has_single_value(use, shape(use.buffer)) for use in uses):
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
    sorted_entries = sorted(
        (_entries(store, use, shape(use.buffer), uses, touched) for use in uses), key=lambda pair: pair[0]
    )
    entries: list[float] = []
    tied: set[int] = set()
    for _, same_key in groupby(sorted_entries, key=lambda pair: pair[0]):
        blocks = [numbers for _, numbers in same_key]
        differ = [len(set(column)) > 1 for column in zip(*blocks, strict=True)]
        for _ in blocks:
            tied |= {len(entries) + i for i, is_different in enumerate(differ) if is_different}
            entries += [
                math.nan if is_different else number for number, is_different in zip(blocks[0], differ, strict=True)
            ]
    entries += [0.0] * (SLOTS * PER_BUFFER)
    return BufferEntries(entries[: SLOTS * PER_BUFFER], bytes_touched, tied=frozenset(tied))


def _has_single_value(use: _Use, shape: tuple[int, ...]) -> bool:
    """Return whether a condition leaves only one value of an index, which TVM then writes instead of the index.

    A variable index into a dimension of one element can be read only under such a condition."""
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
    """Wrap a number to 64 bits; a loaded index may have any value."""
    return (number + 2**63) % 2**64 - 2**63


def _entries(
    store: LoweredStore, use: _Use, shape: tuple[int, ...], uses: Sequence[_Use], touched: Touched
) -> tuple[tuple[float, float, str], list[float]]:
    """Return (sort key, the 18 entries)."""
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
    """Return (elements, level) of the innermost loop that moves the buffer according to TVM, or (0, -1)."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    for level in reversed(range(len(store.loops))):
        stride_of_accesses = [_step(indices, steps, store.loops[level].name) for indices in use.indices]
        smallest = min((step for step in stride_of_accesses if step is not None), default=0)
        if smallest:
            return smallest, level
    return 0, -1


def _step(indices: tuple[Written, ...], steps: Sequence[int], name: str) -> int | None:
    """Return the step in elements of the last dimension that a loop moves, or None if it moves none."""
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
    """Return (kind, iterations and bytes between uses, number of uses)."""
    moving = frozenset[str]().union(*(index.atoms for indices in use.indices for index in indices))
    for level in reversed(range(len(store.loops))):
        loop = store.loops[level]
        if loop.name not in moving:
            if level == len(store.loops) - 1:
                bytes_between: float = sum(u.buffer.item_bytes for u in uses)
            else:
                bytes_between = touched.bytes(store.loops[level + 1])
            return "loop", float(_inner(store, level + 1)), bytes_between, loop.extent
        earlier = touched.elements(loop, use.buffer)
        if len(earlier) > 1:
            return "serial", min(earlier) / loop.extent, touched.bytes(loop) / loop.extent, len(earlier) - 1
    return "none", 0.0, 0.0, 0


def _inner(store: LoweredStore, level: int) -> int:
    return math.prod(loop.extent for loop in store.loops[level:])


def _log(value: float) -> float:
    return math.log2(abs(value) + 1)
