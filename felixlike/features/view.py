"""What the feature groups share: one store seen from its loops, with regions and strides as expressions.

In: a store, its loops, the program. Out: `StoreView`. Complete products of tile factors are numbers by construction
(`symbolic.expression.Group`), so what covers a whole dimension is a number too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from felixlike.symbolic.expression import Expr, add, const, expand, maximum, minimum, mul
from felixlike.symbolic.program import Access, Buffer, Index, Loop, Program, Store


class Memo:
    """What stores share, also across the structures of one sketch: how far an index reaches under which loops."""

    def __init__(self) -> None:
        self._reach: dict[tuple[Index, tuple[tuple[Expr, Expr], ...]], tuple[Expr, ...]] = {}
        self._difference: dict[tuple[Expr, Expr], Expr] = {}

    def last(self, index: Index, loops: tuple[Loop, ...], level: int) -> Expr:
        """The largest value of an index while the loops from `level` inwards run and those outside are at 0."""
        key = (index, tuple((loop.variable, loop.extent) for loop in loops))
        if key not in self._reach:
            self._reach[key] = self._all_levels(index, loops)
        return self._reach[key][level]

    def difference(self, high: Expr, low: Expr) -> Expr:
        """high − low + 1, multiplied out."""
        if (high, low) not in self._difference:
            self._difference[high, low] = expand(high - low + 1)
        return self._difference[high, low]

    def _all_levels(self, index: Index, loops: tuple[Loop, ...]) -> tuple[Expr, ...]:
        strides = dict(index.strides)
        reach = [index.offset]
        for loop in reversed(loops):
            stride = strides.get(loop.variable)
            reach.append(reach[-1] if stride is None else expand(reach[-1] + stride * (loop.extent - 1)))
        return tuple(reversed(reach))


@dataclass(frozen=True, eq=False)
class StoreView:
    """One store and its loops, outermost first, those of extent 1 by structure left out.

    path: all of them.  earlier: the stores before it in program order.  memo: what is shared with other stores."""

    program: Program
    store: Store
    loops: tuple[Loop, ...]
    path: tuple[Loop, ...]
    earlier: tuple[StoreView, ...]
    memo: Memo

    @cached_property
    def extents(self) -> tuple[Expr, ...]:
        """Extents of `loops`."""
        return tuple(loop.extent for loop in self.loops)

    @cached_property
    def iterations(self) -> Expr:
        """Executions of the store."""
        return mul(self.extents)

    def inner(self, level: int) -> Expr:
        """Product of the extents of the loops from `level` inwards; 1 past the innermost."""
        return mul(self.extents[level:])

    def outer(self, level: int) -> Expr:
        """Product of the extents of the loops outside `level`."""
        return mul(self.extents[:level])

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The distinct buffers, the written one first."""
        return tuple(dict.fromkeys(access.buffer for access in self.store.accesses))

    def accesses(self, buffer: Buffer) -> tuple[Access, ...]:
        """All accesses of the store to a buffer."""
        return tuple(dict.fromkeys(a for a in self.store.accesses if a.buffer is buffer))

    def uses(self, buffer: Buffer, level: int) -> bool:
        """Whether the elements touched of a buffer depend on the loop at `level`."""
        return any(a.uses(self.loops[level].variable) for a in self.accesses(buffer))

    def widths(self, buffer: Buffer, level: int) -> tuple[Expr, ...]:
        """Per dimension, the extent of the box touched while the loops from `level` inwards run."""
        accesses = self.accesses(buffer)
        return tuple(self._width([a.indices[d] for a in accesses], level) for d in range(len(buffer.shape)))

    def _width(self, indices: list[Index], level: int) -> Expr:
        lows = [index.offset for index in indices]
        highs = [self.memo.last(index, self.loops, level) for index in indices]
        low, high = lows[0], highs[0]
        for other_low, other_high in zip(lows[1:], highs[1:], strict=True):
            low, high = minimum(low, other_low), maximum(high, other_high)
        return self.memo.difference(high, low)

    def elements(self, buffer: Buffer, level: int) -> Expr:
        """Elements of that box."""
        return mul(self.widths(buffer, level))

    def touched_bytes(self, level: int) -> Expr:
        """Bytes of the boxes of all buffers touched while the loops from `level` inwards run."""
        return self._touched[level]

    @cached_property
    def _touched(self) -> tuple[Expr, ...]:
        return tuple(
            add(self.elements(buffer, level) * buffer.item_bytes for buffer in self.buffers)
            for level in range(len(self.loops) + 1)
        )

    def stride(self, buffer: Buffer, level: int) -> Expr | None:
        """Elements the loop at `level` moves an access by, in row-major order; None where it moves none."""
        variable = self.loops[level].variable
        smallest: Expr | None = None
        for access in self.accesses(buffer):
            step: Expr = const(1)
            for index, extent in zip(reversed(access.indices), reversed(buffer.shape), strict=True):
                if any(variable is v for v, _ in index.strides):
                    found = expand(index.stride(variable) * step)
                    smallest = found if smallest is None else minimum(smallest, found)
                    break
                step = step * extent
        return smallest
