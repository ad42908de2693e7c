"""Define the buffers of a symbolic program."""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.symbolic.expr.comparison import select
from felixlike.symbolic.expr.expression import Expr, const, floordiv, mul
from felixlike.symbolic.expr.polynomial import expand


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Describe a buffer.

    Attributes:
        name: The name.
        shape: The extents.
        item_bytes: Bytes of one element.
        internal: Whether the program itself allocates the buffer.
        scope: The memory: "global", "shared" by the threads of a block, or "local" to one thread.
        origin: The original buffer of a constant that is laid out in the order of the loops.
        full: The shape before compaction, if loops around the allocation decide which groups are accessed; else empty.
        loose: The dimensions where they decide this, each with a gate: 1 for tiles with which TVM may allocate more of
            the dimension than is used.
        aligns: (dimension, factor, offset): the dimension's stride is the least one that is `offset` above a multiple
            of `factor`.
    """

    name: str
    shape: tuple[Expr, ...]
    item_bytes: int
    internal: bool
    scope: str = "global"
    origin: Buffer | None = None
    full: tuple[Expr, ...] = ()
    loose: tuple[tuple[int, Expr], ...] = ()
    aligns: tuple[tuple[int, int, int], ...] = ()

    @property
    def grouped(self) -> bool:
        """Return whether loops around the allocation decide which groups are accessed."""
        return bool(self.full)

    @property
    def steps(self) -> tuple[Expr, ...]:
        """Return each dimension's stride in elements (CalcStrides in compact_buffer_region.cc)."""
        aligns = {dimension: (factor, offset % factor) for dimension, factor, offset in self.aligns}
        strides: list[Expr] = []
        step: Expr = const(1)
        for dimension in reversed(range(len(self.shape))):
            if dimension in aligns:
                factor, offset = aligns[dimension]
                step = floordiv(step + (factor - 1 - offset), factor) * factor + offset
            strides.append(step)
            step = expand(step * self.shape[dimension])
        return tuple(reversed(strides))

    @property
    def elements(self) -> Expr:
        """Return the number of elements allocated; aligned strides make it larger than the number used."""
        return self.steps[0] * self.shape[0] if self.aligns else mul(self.shape)

    @property
    def most(self) -> Expr:
        """Return an upper bound on the elements that TVM allocates.

        TVM's interval arithmetic counts at most two boxes too many; no allocation above this bound was observed.
        """
        if not self.grouped:
            return self.elements
        gates = dict(self.loose)
        return mul(
            select(gates[d], self.full[d] + 2 * extent, extent) if d in gates else extent
            for d, extent in enumerate(self.shape)
        )
