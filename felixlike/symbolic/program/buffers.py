"""Tensors of a symbolic program."""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.symbolic.expr.comparison import select
from felixlike.symbolic.expr.expression import Expr, const, floordiv, mul
from felixlike.symbolic.expr.polynomial import expand


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A tensor.  shape: extents.  item_bytes: bytes of one element.  internal: allocated by the program itself.
    scope: where it lies: "global", "shared" by the threads of a block, or "local" to one.  origin: of a constant that
    is laid out in the order of the loops, what it was before.  full: where accesses go by groups which loops
    around its allocation decide, its shape before it was made as small as they allow.  loose: the dimensions in which
    they do, each with a gate: 1 for tiles of which TVM may allocate more of it than is used.
    aligns: (dimension, factor, offset): its step is the least one that leaves `offset` over multiples of `factor`."""

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
        """Whether loops around its allocation decide groups of what is accessed."""
        return bool(self.full)

    @property
    def steps(self) -> tuple[Expr, ...]:
        """For each dimension, the elements from one place to the next (CalcStrides in compact_buffer_region.cc)."""
        aligns = {dimension: (factor, offset % factor) for dimension, factor, offset in self.aligns}
        found: list[Expr] = []
        step: Expr = const(1)
        for dimension in reversed(range(len(self.shape))):
            if dimension in aligns:
                factor, offset = aligns[dimension]
                step = floordiv(step + (factor - 1 - offset), factor) * factor + offset
            found.append(step)
            step = expand(step * self.shape[dimension])
        return tuple(reversed(found))

    @property
    def elements(self) -> Expr:
        """Room that is allocated for so many; more than those that are used where steps are aligned."""
        return self.steps[0] * self.shape[0] if self.aligns else mul(self.shape)

    @property
    def most(self) -> Expr:
        """Room for more was never seen to be allocated: its interval arithmetic counts two boxes too many at worst."""
        if not self.grouped:
            return self.elements
        gates = dict(self.loose)
        return mul(
            select(gates[d], self.full[d] + 2 * extent, extent) if d in gates else extent
            for d, extent in enumerate(self.shape)
        )
