"""Provide the store view that the feature groups share, with regions and strides as expressions.

Input: a store, its loops, the program. Output: `StoreView`. Complete products of tile factors are constants by
construction (`symbolic.expr.node.Group`), so the width of a fully covered dimension is a constant too.

An instruction for pairs of bfloat16 numbers does in one execution what a multiply-add does for one step of a reduction.
The loop over the pair is therefore no loop of the view: an execution touches both elements, as one word if they are
neighbours. Nor is the loop over the rows of a matrix: the instruction that multiplies matrices takes as many cycles as
one row of the first, of 16 pairs, would take. An execution touches the words of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from felixlike.symbolic.expr.comparison import at_least, maximum, minimum
from felixlike.symbolic.expr.expression import Expr, add, const, mul
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.program import Access, Buffer, Index, Loop, Program, Store


class Memo:
    """Cache the spans of indices under loops, for all stores and structures of one sketch."""

    def __init__(self) -> None:
        self._spans: dict[tuple[Index, tuple[tuple[Expr, Expr], ...]], tuple[tuple[Expr, Expr], ...]] = {}
        self._difference: dict[tuple[Expr, Expr], Expr] = {}

    def spans(self, index: Index, loops: tuple[tuple[Expr, Expr], ...]) -> tuple[tuple[Expr, Expr], ...]:
        """Return the least and greatest value of an index while the loops from each level inwards run, others are 0.

        loops: the variable and the extent of each loop.
        """
        key = (index, loops)
        if key not in self._spans:
            self._spans[key] = self._all_levels(index, loops)
        return self._spans[key]

    def difference(self, high: Expr, low: Expr) -> Expr:
        """Return high − low + 1, expanded."""
        if (high, low) not in self._difference:
            self._difference[high, low] = expand(high - low + 1)
        return self._difference[high, low]

    def _all_levels(self, index: Index, loops: tuple[tuple[Expr, Expr], ...]) -> tuple[tuple[Expr, Expr], ...]:
        """Return the span of an index for each level, outermost first."""
        running: dict[Expr, Expr] = {}
        moving = index.variables
        spans = [index.span(running)]
        for variable, extent in reversed(loops):
            running[variable] = extent
            spans.append(index.span(running) if variable in moving else spans[-1])
        return tuple(reversed(spans))


@dataclass(frozen=True, eq=False)
class StoreView:
    """Describe one store and its loops.

    Attributes:
        program: The program.
        store: The store.
        loops: The loops around the store, outermost first, without those of extent 1 and those of an instruction.
        path: All loops around the store.
        earlier: The views of the stores before it, in program order.
        memo: The cache shared with other stores.
    """

    program: Program
    store: Store
    loops: tuple[Loop, ...]
    path: tuple[Loop, ...]
    earlier: tuple[StoreView, ...]
    memo: Memo

    @cached_property
    def _pair(self) -> tuple[Loop, ...]:
        """Return the loop over the pair that an execution touches, if any."""
        return tuple(loop for loop in self.path if loop.variable is self.store.word)

    @cached_property
    def _rows(self) -> tuple[Loop, ...]:
        """Return the loop over the rows that an execution touches, if any."""
        return tuple(loop for loop in self.path if loop.variable is self.store.rows)

    def item_bytes(self, buffer: Buffer) -> int:
        """Return the bytes that an execution touches: those of an element, or of a pair of them, in each row."""
        return buffer.item_bytes * self._touched_by(self._pair, buffer) * self._touched_by(self._rows, buffer)

    def words(self, buffer: Buffer) -> int:
        """Return the words of a row that an execution touches: 2 if a pair's elements are no neighbours, else 1."""
        return self._touched_by(self._pair, buffer) // self._word(buffer)

    def _touched_by(self, loops: tuple[Loop, ...], buffer: Buffer) -> int:
        """Return the elements that an execution touches along a loop, if it moves an access, else 1."""
        moving = [loop for loop in loops if any(a.uses(loop.variable) for a in self.accesses(buffer))]
        return int(moving[0].extent.value) if moving else 1

    def _word(self, buffer: Buffer) -> int:
        """Return the elements that an execution touches as one word."""
        steps = [self._flat(a, loop) for loop in self._pair for a in self.accesses(buffer) if a.uses(loop.variable)]
        return self._touched_by(self._pair, buffer) if all(step is const(1) for step in steps) else 1

    def _flat(self, access: Access, loop: Loop) -> Expr:
        """Return the average number of elements by which a step of a loop moves an access."""
        flat: Expr = const(0)
        for index, step in zip(reversed(access.indices), reversed(access.buffer.steps), strict=True):
            flat = flat + index.step(loop.variable, loop.extent) * step
        return expand(flat)

    @cached_property
    def _ranges(self) -> tuple[tuple[Expr, Expr], ...]:
        """Return the variable and the extent of each loop, with those over rows and over a pair."""
        return tuple((loop.variable, loop.extent) for loop in (*self.loops, *self._rows, *self._pair))

    @cached_property
    def extents(self) -> tuple[Expr, ...]:
        """Return the extents of `loops`."""
        return tuple(loop.extent for loop in self.loops)

    @cached_property
    def iterations(self) -> Expr:
        """Return the number of executions of the store."""
        return mul(self.extents)

    def inner(self, level: int) -> Expr:
        """Return the product of the extents of the loops from `level` inwards; 1 past the innermost."""
        return mul(self.extents[level:])

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the distinct buffers, the written one first."""
        return tuple(dict.fromkeys(access.buffer for access in self.store.accesses))

    def accesses(self, buffer: Buffer) -> tuple[Access, ...]:
        """Return all accesses of the store to a buffer."""
        return tuple(dict.fromkeys(a for a in self.store.accesses if a.buffer is buffer))

    def moves(self, buffer: Buffer, level: int) -> Expr:
        """Return the gate of whether the loop at `level` touches more elements of a buffer than the loops inside it."""
        variable = self.loops[level].variable
        accesses = [a for a in self.accesses(buffer) if a.uses(variable)]
        if not accesses:
            return const(0)
        if any(variable is v for a in accesses for index in a.indices for v, _ in index.strides):
            return const(1)
        return at_least(expand(self.elements(buffer, level) - self.elements(buffer, level + 1)), 1)

    def widths(self, buffer: Buffer, level: int) -> tuple[Expr, ...]:
        """Return, per dimension, the extent of the box touched while the loops from `level` inwards run."""
        accesses = self.accesses(buffer)
        return tuple(self._width([a.indices[d] for a in accesses], level) for d in range(len(buffer.shape)))

    def _width(self, indices: list[Index], level: int) -> Expr:
        """Return the extent that several indices of one dimension cover together."""
        low, high = self.memo.spans(indices[0], self._ranges)[level]
        for other in indices[1:]:
            first, last = self.memo.spans(other, self._ranges)[level]
            low, high = minimum(low, first), maximum(high, last)
        return self.memo.difference(high, low)

    def elements(self, buffer: Buffer, level: int) -> Expr:
        """Return the elements of the box touched while the loops from `level` inwards run."""
        key = (id(buffer), level)
        if key not in self._elements:
            self._elements[key] = mul(self.widths(buffer, level))
        return self._elements[key]

    @cached_property
    def _elements(self) -> dict[tuple[int, int], Expr]:
        """Return the results of `elements` so far, by the identity of the buffer, which the store keeps, and level."""
        return {}

    def touched_bytes(self, level: int) -> Expr:
        """Return the bytes of the boxes of all buffers touched while the loops from `level` inwards run."""
        return self._touched[level]

    @cached_property
    def _touched(self) -> tuple[Expr, ...]:
        """Return `touched_bytes` for each level."""
        return tuple(
            add(self.elements(buffer, level) * buffer.item_bytes for buffer in self.buffers)
            for level in range(len(self.loops) + 1)
        )

    def stride(self, buffer: Buffer, level: int) -> Expr | None:
        """Return the average number of elements, or words, by which a step of the loop at `level` moves an access.

        None if the loop's variable occurs in no access to the buffer.
        """
        loop = self.loops[level]
        minimum_stride: Expr | None = None
        for access in self.accesses(buffer):
            if not access.uses(loop.variable):
                continue
            flat = expand(self._flat(access, loop) / self._word(buffer))
            flat = -flat if flat.high <= 0 else flat
            minimum_stride = flat if minimum_stride is None else minimum(minimum_stride, flat)
        return minimum_stride
