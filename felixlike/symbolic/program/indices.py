"""Indices of accesses, and the accesses that they are made of: each knows the other.

    Y[i·t + j, ⌊k / 16⌋, (p + 3) mod 7, I[j]]

An index is quasi-affine in the loops around it, or loaded from other buffers. It knows the values it takes while some
loops run, what one step of a loop adds, and what is left where loops stand still.
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
    """factor · ⌊inner / divisor⌋, as the groups of a grouped convolution make it.  inner ≥ 0.  factor > 0."""

    inner: Index
    divisor: int
    factor: int

    def of(self, inner: Expr) -> Expr:
        """The value for a value of `inner`."""
        return floordiv(inner, self.divisor) * self.factor


@dataclass(frozen=True, slots=True)
class Remainder:
    """factor · (inner mod divisor), as loops that are fused over a window make it.  inner ≥ 0.  factor > 0."""

    inner: Index
    divisor: int
    factor: int

    def of(self, inner: Expr) -> Expr:
        """The value for a value of `inner`."""
        return (inner - self.divisor * floordiv(inner, self.divisor)) * self.factor


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index that depends on data: any of `places` places, named by elements that the program loads.

    What it reaches is counted as if all elements of the index buffers were different: as many places as elements are
    loaded, at most all.  A step goes a third of the way from end to end, the mean distance of two random places."""

    sources: tuple[Access, ...]
    places: Expr

    @property
    def expression(self) -> Expr:
        """A name for the place."""
        return var(", ".join(map(str, self.sources)), 0, self.places.high - 1)

    @property
    def variables(self) -> frozenset[Expr]:
        """The loop variables that choose which element is loaded."""
        return frozenset[Expr]().union(*(source.variables for source in self.sources))

    def reach(self, extents: Mapping[Expr, Expr]) -> Expr:
        """How many places are named while the loops of `extents` run."""
        spans = [index.span(extents) for source in self.sources for index in source.indices]
        return minimum(mul(high - low + 1 for low, high in spans), self.places)

    def without(self, leaves: Callable[[Expr], bool]) -> Lookup:
        """The lookup with the loop variables that `leaves` names standing at 0."""
        return Lookup(tuple(source.without(leaves) for source in self.sources), self.places)


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write of one element of a buffer.

    indices: where it lies, loops around the buffer's allocation standing at 0.  written: the same as TVM writes it:
    within dimensions that are allocated whole such loops still move; of a constant that is laid out anew, its place in
    the old layout; empty where that makes no difference.  unmoved: of grouped buffers, where it lies if the buffer is
    not made smaller."""

    buffer: Buffer
    indices: tuple[Index, ...]
    written: tuple[Index, ...] = ()
    unmoved: tuple[Index, ...] = ()

    @property
    def variables(self) -> frozenset[Expr]:
        """The loop variables the element depends on."""
        return frozenset[Expr]().union(*(index.variables for index in self.indices))

    def uses(self, variable: Expr) -> bool:
        """Whether the element depends on a loop variable."""
        return variable in self.variables

    def without(self, leaves: Callable[[Expr], bool]) -> Access:
        """The access with the loop variables that `leaves` names standing at 0."""
        return Access(self.buffer, tuple(index.without(leaves) for index in self.indices))

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(str(index.expression) for index in self.indices)}]"


@dataclass(frozen=True, slots=True)
class Index:
    """One index: quasi-affine, that is offset + Σ stride · loop variable + Σ floors and remainders; or a `Lookup`."""

    offset: Expr
    strides: tuple[tuple[Expr, Expr], ...]
    """(loop variable, its coefficient), in the order in which TVM names them."""
    floors: tuple[Floor | Remainder, ...] = ()
    lookup: Lookup | None = None

    @property
    def expression(self) -> Expr:
        """The index as one expression."""
        if self.lookup is not None:
            return self.lookup.expression
        affine = self.offset + sum((v * c for v, c in self.strides), const(0))
        return affine + sum((floor.of(floor.inner.expression) for floor in self.floors), const(0))

    @property
    def variables(self) -> frozenset[Expr]:
        """The loop variables that occur."""
        own = frozenset(v for v, _ in self.strides) if self.lookup is None else self.lookup.variables
        return own.union(*(floor.inner.variables for floor in self.floors))

    def stride(self, variable: Expr) -> Expr:
        """The coefficient of a loop variable outside floors; 0 where it does not occur."""
        return dict(self.strides).get(variable, const(0))

    def span(self, extents: Mapping[Expr, Expr]) -> tuple[Expr, Expr]:
        """Smallest and largest value while the loops of `extents` run and all others stand at 0."""
        if self.lookup is not None:
            return const(0), self.lookup.reach(extents) - 1
        tangled, straight = self._apart()
        low, high = tangled.ends(extents) if tangled.floors else (const(0), const(0))
        low, high = straight.offset + low, straight.offset + high
        for variable, stride in straight.strides:
            if variable not in extents:
                continue
            way = stride * (extents[variable] - 1)
            if stride.low >= 0:
                high = high + way
            elif stride.high <= 0:
                low = low + way
            else:
                raise UnsupportedSketch("the direction of an access depends on the tiles", where=str(self.expression))
        for floor in straight.floors:
            inner = floor.inner.span(extents)
            low, high = low + floor.of(expand(inner[0])), high + floor.of(expand(inner[1]))
        return expand(low), expand(high)

    @property
    def rises(self) -> bool:
        """Whether no term falls while loops run: there are no remainders."""
        return all(isinstance(floor, Floor) and floor.inner.rises for floor in self.floors)

    def _apart(self) -> tuple[Index, Index]:
        """What rises and falls, with all that moves by the same loops; and what is left."""
        if self.rises:
            return Index(const(0), ()), self
        moved = frozenset[Expr]().union(*(floor.inner.variables for floor in self.floors))
        tangled = Index(const(0), tuple((v, c) for v, c in self.strides if v in moved), self.floors)
        return tangled, Index(self.offset, tuple((v, c) for v, c in self.strides if v not in moved))

    def ends(self, extents: Mapping[Expr, Expr]) -> tuple[Expr, Expr]:
        """`span` by trying all values, for each choice of tile factors."""
        running = tuple((v, extent) for v, extent in extents.items() if v in self.variables)
        low, high, _ = _tried(self.expression, self.variables, running)
        return low, high

    def step(self, variable: Expr, extent: Expr) -> Expr:
        """What one step of a loop adds, on average over the loop, all other loops standing at 0."""
        if self.lookup is not None:
            return self.lookup.places / 3 if variable in self.lookup.variables else const(0)
        tangled, straight = self._apart()
        total = straight.stride(variable)
        if variable in tangled.variables:
            total = total + _tried(tangled.expression, tangled.variables, ((variable, extent),))[2]
        for floor in straight.floors:
            first, last = floor.inner.span({variable: extent})
            if first is not last:
                total = total + (floor.of(last) - floor.of(first)) / maximum(extent - 1, 1)
        return total

    def without(self, leaves: Callable[[Expr], bool]) -> Index:
        """The index with the loop variables that `leaves` names standing at 0."""
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
"""Values of an index that are tried, all choices of tile factors together."""


@lru_cache(maxsize=10_000)
def _tried(
    expression: Expr, loops: frozenset[Expr], running: tuple[tuple[Expr, Expr], ...], quantities: tuple[Expr, ...] = ()
) -> tuple[Expr, Expr, Expr]:
    """Smallest and largest value while loops (variable, extent) run and others stand at 0; and a step's mean way.

    loops: the loop variables of the expression.  quantities: as `by_cases` takes them."""
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
        found = graph.evaluate(columns, count)[:, 0]
        return int(found.min()), int(found.max()), float(found[-1] - found[0]) / max(1, count - 1)

    low, high, step = by_cases(tiles, numbers, quantities)
    return low, high, step


def ends_of(expression: Expr, extents: Mapping[Expr, Expr], quantities: Sequence[Expr]) -> tuple[Expr, Expr]:
    """Smallest and largest value of an expression while the loops of `extents` run, for each choice of tile factors.

    quantities: as `by_cases` takes them.  Raises UnsupportedSketch where there are too many values to try them."""
    running = tuple((v, extents[v]) for v in variables([expression]) if v in extents)
    loops = tuple(v for v, _ in running)
    low, high, _ = _tried(expression, frozenset(loops), running, tuple(quantities))
    return low, high
