"""Define the indices of accesses, and the accesses that consist of them; each class refers to the other.

    Y[i·t + j, ⌊k / 16⌋, (p + 3) mod 7, I[j]]

An index is quasi-affine in the loops around it, or loaded from other buffers. It provides its range of values while
some loops run, the change by one step of a loop, and the index that remains where some loop variables are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.cases import by_cases
from felixlike.symbolic.expr.comparison import maximum, minimum
from felixlike.symbolic.expr.evaluation import Graph, evaluate
from felixlike.symbolic.expr.expression import Expr, const, floordiv, mul, var
from felixlike.symbolic.expr.node import Number
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.expr.traversal import variables
from felixlike.symbolic.program.buffers import Buffer


@dataclass(frozen=True, slots=True)
class Floor:
    """Describe factor · ⌊inner / divisor⌋, as in the groups of a grouped convolution; inner ≥ 0 and factor > 0."""

    inner: Index
    divisor: int
    factor: int

    def of(self, inner: Expr) -> Expr:
        """Return the value for a value of `inner`."""
        return floordiv(inner, self.divisor) * self.factor


@dataclass(frozen=True, slots=True)
class Remainder:
    """Describe factor · (inner mod divisor), as in loops that are fused over a window; inner ≥ 0 and factor > 0."""

    inner: Index
    divisor: int
    factor: int

    def of(self, inner: Expr) -> Expr:
        """Return the value for a value of `inner`."""
        return (inner - self.divisor * floordiv(inner, self.divisor)) * self.factor


@dataclass(frozen=True, slots=True)
class Lookup:
    """Describe an index that depends on data: one of `places` positions, stored in elements that the program loads.

    The elements of the index buffers are assumed to differ: as many positions as loaded elements are touched, at most
    all. The mean step is a third of the dimension, the mean distance of two random positions.

    Attributes:
        sources: The accesses that load the index.
        places: The number of positions.
    """

    sources: tuple[Access, ...]
    places: Expr

    @property
    def expression(self) -> Expr:
        """Return a variable that stands for the position."""
        return var(", ".join(map(str, self.sources)), 0, self.places.high - 1)

    @property
    def variables(self) -> frozenset[Expr]:
        """Return the loop variables that select the loaded element."""
        return frozenset[Expr]().union(*(source.variables for source in self.sources))

    def reach(self, extents: Mapping[Expr, Expr]) -> Expr:
        """Return the number of positions touched while the loops of `extents` run."""
        spans = [index.span(extents) for source in self.sources for index in source.indices]
        return minimum(mul(high - low + 1 for low, high in spans), self.places)

    def without(self, leaves: Callable[[Expr], bool]) -> Lookup:
        """Return the lookup with the loop variables that `leaves` selects set to 0."""
        return Lookup(tuple(source.without(leaves) for source in self.sources), self.places)


@dataclass(frozen=True, slots=True)
class Access:
    """Describe a read or write of one element of a buffer.

    Attributes:
        buffer: The buffer.
        indices: The element's indices, with loops around the buffer's allocation at 0.
        written: The indices as TVM writes them: in dimensions that are allocated whole, loops around the allocation
            still count. For a constant with a new layout, the indices in the old layout. Empty where there is no
            difference.
        unmoved: For grouped buffers, the indices if the buffer is not compacted.
    """

    buffer: Buffer
    indices: tuple[Index, ...]
    written: tuple[Index, ...] = ()
    unmoved: tuple[Index, ...] = ()

    @property
    def variables(self) -> frozenset[Expr]:
        """Return the loop variables that the element depends on."""
        return frozenset[Expr]().union(*(index.variables for index in self.indices))

    def uses(self, variable: Expr) -> bool:
        """Return whether the element depends on a loop variable."""
        return variable in self.variables

    def without(self, leaves: Callable[[Expr], bool]) -> Access:
        """Return the access with the loop variables that `leaves` selects set to 0."""
        return Access(self.buffer, tuple(index.without(leaves) for index in self.indices))

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(str(index.expression) for index in self.indices)}]"


@dataclass(frozen=True, slots=True)
class Index:
    """Describe one index: offset + Σ stride · loop variable + Σ floors and remainders (quasi-affine), or a `Lookup`."""

    offset: Expr
    strides: tuple[tuple[Expr, Expr], ...]
    """(loop variable, coefficient) pairs, in TVM's order."""
    floors: tuple[Floor | Remainder, ...] = ()
    lookup: Lookup | None = None

    @property
    def expression(self) -> Expr:
        """Return the index as one expression."""
        if self.lookup is not None:
            return self.lookup.expression
        affine = self.offset + sum((v * c for v, c in self.strides), const(0))
        return affine + sum((floor.of(floor.inner.expression) for floor in self.floors), const(0))

    @property
    def variables(self) -> frozenset[Expr]:
        """Return the loop variables that occur."""
        direct = frozenset(v for v, _ in self.strides) if self.lookup is None else self.lookup.variables
        return direct.union(*(floor.inner.variables for floor in self.floors))

    def stride(self, variable: Expr) -> Expr:
        """Return the coefficient of a loop variable outside floors; 0 if it does not occur."""
        return dict(self.strides).get(variable, const(0))

    def span(self, extents: Mapping[Expr, Expr]) -> tuple[Expr, Expr]:
        """Return the least and greatest value while the loops of `extents` run and all others are at 0.

        Raises:
            UnsupportedSketch: If the sign of a stride depends on the tiles.
        """
        if self.lookup is not None:
            return const(0), self.lookup.reach(extents) - 1
        coupled, straight = self._split_coupled()
        low, high = coupled.ends(extents) if coupled.floors else (const(0), const(0))
        low, high = straight.offset + low, straight.offset + high
        for variable, stride in straight.strides:
            if variable not in extents:
                continue
            change = stride * (extents[variable] - 1)
            if stride.low >= 0:
                high = high + change
            elif stride.high <= 0:
                low = low + change
            else:
                raise UnsupportedSketch("the sign of a stride depends on the tile factors", where=str(self.expression))
        for floor in straight.floors:
            inner = floor.inner.span(extents)
            low, high = low + floor.of(expand(inner[0])), high + floor.of(expand(inner[1]))
        return expand(low), expand(high)

    @property
    def rises(self) -> bool:
        """Return whether no term decreases while loops run: the index has no remainders."""
        return all(isinstance(floor, Floor) and floor.inner.rises for floor in self.floors)

    def _split_coupled(self) -> tuple[Index, Index]:
        """Split the index into its non-monotonic terms, with all terms of the same loops, and the other terms."""
        if self.rises:
            return Index(const(0), ()), self
        coupled_variables = frozenset[Expr]().union(*(floor.inner.variables for floor in self.floors))
        coupled = Index(const(0), tuple((v, c) for v, c in self.strides if v in coupled_variables), self.floors)
        return coupled, Index(self.offset, tuple((v, c) for v, c in self.strides if v not in coupled_variables))

    def ends(self, extents: Mapping[Expr, Expr]) -> tuple[Expr, Expr]:
        """Return `span` by trying all values, for each choice of tile factors."""
        running = tuple((v, extent) for v, extent in extents.items() if v in self.variables)
        low, high, _ = _tried(self.expression, self.variables, running)
        return low, high

    def step(self, variable: Expr, extent: Expr) -> Expr:
        """Return the average change by one step of a loop, with all other loops at 0."""
        if self.lookup is not None:
            return self.lookup.places / 3 if variable in self.lookup.variables else const(0)
        coupled, straight = self._split_coupled()
        total = straight.stride(variable)
        if variable in coupled.variables:
            total = total + _tried(coupled.expression, coupled.variables, ((variable, extent),))[2]
        for floor in straight.floors:
            first, last = floor.inner.span({variable: extent})
            if first is not last:
                total = total + (floor.of(last) - floor.of(first)) / maximum(extent - 1, 1)
        return total

    def without(self, leaves: Callable[[Expr], bool]) -> Index:
        """Return the index with the loop variables that `leaves` selects set to 0."""
        lookup = None if self.lookup is None else self.lookup.without(leaves)
        offset = self.offset
        floors: list[Floor | Remainder] = []
        for floor in self.floors:
            inner = floor.inner.without(leaves)
            if inner.variables:
                floors.append(replace(floor, inner=inner))
            else:
                offset = offset + floor.of(inner.expression)
        return Index(offset, tuple((v, c) for v, c in self.strides if not leaves(v)), tuple(floors), lookup)


_MOST_TRIED = 1_000_000
"""Maximum number of values of an index that are tried, for all choices of tile factors together."""


@lru_cache(maxsize=10_000)
def _tried(
    expression: Expr, loops: frozenset[Expr], running: tuple[tuple[Expr, Expr], ...], quantities: tuple[Expr, ...] = ()
) -> tuple[Expr, Expr, Expr]:
    """Return the least and greatest value while loops (variable, extent) run and others are at 0, and the mean step.

    Args:
        loops: The loop variables of the expression.
        quantities: As for `by_cases`.
    """
    tiles = [v for v in variables([expression, *(extent for _, extent in running)]) if v not in loops]
    graph = Graph([expression])
    tried = 0

    def numbers(values: Mapping[str, int]) -> tuple[Number, ...]:
        nonlocal tried
        sizes = [round(evaluate(extent, values)) for _, extent in running]
        count = math.prod(sizes)
        tried += count
        if tried > _MOST_TRIED:
            raise UnsupportedSketch(f"more than {_MOST_TRIED} values of {expression}", where="indices")
        columns = {v.name: np.zeros(count) for v in loops}
        columns |= {name: np.full(count, float(value)) for name, value in values.items()}
        for (variable, _), column in zip(running, np.indices(sizes).reshape(len(sizes), count), strict=True):
            columns[variable.name] = column.astype(np.float64)
        results = graph.evaluate(columns, count)[:, 0]
        return int(results.min()), int(results.max()), float(results[-1] - results[0]) / max(1, count - 1)

    low, high, step = by_cases(tiles, numbers, quantities)
    return low, high, step


def ends_of(expression: Expr, extents: Mapping[Expr, Expr], quantities: Sequence[Expr]) -> tuple[Expr, Expr]:
    """Return the least and greatest value of an expression while the loops of `extents` run, as functions of the tiles.

    Args:
        quantities: As for `by_cases`.

    Raises:
        UnsupportedSketch: If there are too many values to try.
    """
    running = tuple((v, extents[v]) for v in variables([expression]) if v in extents)
    loops = tuple(v for v, _ in running)
    low, high, _ = _tried(expression, frozenset(loops), running, tuple(quantities))
    return low, high
