"""A symbolic program: the loop nest of a sketch with expressions for extents, read back from a live TVM schedule.

In: a replayed schedule and its table of variables. Out: `Program`, a tree of loops and stores. Every loop is kept, also
those that may have extent 1, so that one program stands for all structures the sketch lowers to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.cases import by_cases
from felixlike.symbolic.evaluate import Graph, evaluate
from felixlike.symbolic.expression import (
    Expr,
    Number,
    Op,
    const,
    expand,
    floordiv,
    linear_parts,
    maximum,
    minimum,
    mul,
    product_parts,
    var,
    variables,
)


class Operation(StrEnum):
    """Arithmetic that is counted, by TVM's feature names."""

    FLOAT_ADD_SUB = "float_add_sub"
    FLOAT_MUL = "float_mul"
    FLOAT_DIV_MOD = "float_div_mod"
    FLOAT_CMP = "float_cmp"
    FLOAT_MATH_FUNC = "float_math_func"
    FLOAT_OTHER_FUNC = "float_other_func"
    INT_ADD_SUB = "int_add_sub"
    INT_MUL = "int_mul"
    INT_DIV_MOD = "int_div_mod"
    INT_CMP = "int_cmp"
    INT_MATH_FUNC = "int_math_func"
    INT_OTHER_FUNC = "int_other_func"
    BOOL_OP = "bool_op"
    SELECT_OP = "select_op"


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A tensor.  shape: extents.  item_bytes: bytes of one element.  internal: allocated by the program itself.
    scope: where it lies: "global", "shared" by the threads of a block, or "local" to one.  origin: of a constant that
    is laid out in the order of the loops, what it was before.  full: where accesses go by groups which loops
    around its allocation decide, its shape before it was made as small as they allow.  loose: the dimensions in which
    they do; TVM may allocate more of those than is used.
    aligns: (dimension, factor, offset): its step is the least one that leaves `offset` over multiples of `factor`."""

    name: str
    shape: tuple[Expr, ...]
    item_bytes: int
    internal: bool
    scope: str = "global"
    origin: Buffer | None = None
    full: tuple[Expr, ...] = ()
    loose: frozenset[int] = frozenset()
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
        """Room for more was never seen to be allocated: its interval arithmetic counts one box too many at worst."""
        if not self.grouped:
            return self.elements
        return mul(self.full[d] + extent if d in self.loose else extent for d, extent in enumerate(self.shape))


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
class Rest:
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
class Index:
    """One index: quasi-affine, that is offset + Σ stride · loop variable + Σ floors and rests; or a `Lookup`."""

    offset: Expr
    strides: tuple[tuple[Expr, Expr], ...]
    """(loop variable, its coefficient), in the order in which TVM names them."""
    floors: tuple[Floor | Rest, ...] = ()
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
        """Whether no term falls while loops run: there are no rests."""
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
        floors: list[Floor | Rest] = []
        for floor in self.floors:
            inner = floor.inner.without(leaves)
            if inner.variables:
                floors.append(replace(floor, inner=inner))
            else:
                offset = offset + floor.of(inner.expression)
        return Index(offset, tuple((v, c) for v, c in self.strides if not leaves(v)), tuple(floors), lookup)


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


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A statement as TVM writes it, for what TVM makes of it depends on more than its value.

    target: the buffer that is written.  indices, value: in the block's iterators.  loads: the indices of each of the
    store's loads, likewise.  places: (iterator, its value in the loops).  meaning: (TVM's variable, what it is here) of
    the loops and tile factors in `places`.  buffers: (TVM's buffer, what it is here)."""

    target: Any
    indices: tuple[Any, ...]
    value: Any
    loads: tuple[tuple[Any, ...], ...]
    places: tuple[tuple[Any, Any], ...]
    meaning: tuple[tuple[Any, Expr], ...]
    buffers: tuple[tuple[Any, Buffer], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One statement `target[…] = value`.

    loads: the distinct reads in `value` (reads of the target included).  repeats: how often each occurs.  operations:
    how often each kind of arithmetic is done in one execution, index arithmetic not counted.  spatial, reduction: loop
    variables its data-parallel and its reduction iterators depend on.  regions: what TVM notes as its block's reads and
    writes, for the postprocessors.  text, words: as TVM writes it."""

    block: str
    target: Access
    loads: tuple[Access, ...]
    repeats: tuple[int, ...]
    operations: tuple[tuple[Operation, int], ...]
    spatial: frozenset[Expr]
    reduction: frozenset[Expr]
    is_reduction: bool
    regions: tuple[Access, ...]
    text: str
    words: Words

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The write first, then the reads."""
        return (self.target, *self.loads)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Neighbouring loops that are fused and split by factors that need not divide them: a guard skips the rest.

    parts: (kind, extent) of what they become, outermost first; kinds as in `NestLoop`.  places: which part of the split
    each of them is, counted from the one that takes the largest steps."""

    parts: tuple[tuple[str, Expr], ...]
    places: tuple[int, ...]

    def among(self, thread: str) -> bool:
        """Whether one of the parts is bound to a kind of thread."""
        return any(kind == thread for kind, _ in self.parts)


WITHIN_BLOCK = ("threadIdx.x", "vthread.x")
"""What loops are bound to whose iterations run in one block, and see the same shared memory."""

PIPELINE = "pipeline"
"""What a serial loop is bound to that a software pipeline overlaps the iterations of."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """`for variable in range(extent)`.

    parallel, vector: gates that say whether the loop ends up in the fused parallel or vector loop of a store's nest.
    unroll: largest number of unrolled steps (0: none), noted on the outermost loop of a nest.  thread: on GPUs what it
    is bound to ("blockIdx.x", "vthread.x", "threadIdx.x", PIPELINE), fused with its neighbours bound to the same; else
    empty.  kind: what the trace itself says that it is ("parallel", "vector", "unrolled"); else empty.  share: how it
    and its neighbours of the same share are fused and split anew."""

    variable: Expr
    extent: Expr
    body: tuple[Loop | Store, ...]
    parallel: Expr = field(default_factory=lambda: const(0))
    vector: Expr = field(default_factory=lambda: const(0))
    unroll: Expr = field(default_factory=lambda: const(0))
    thread: str = ""
    kind: str = ""
    share: Share | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Blanket:
    """A nest that is fused whole and split by the vector width: outer loop parallel, inner loop vectorised.

    gate: whether this happens.  total: product of the nest's extents.  width: extent of the vector loop."""

    gate: Expr
    total: Expr
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The whole nest.  buffers: in order of first use.  blankets: for stores whose nest may be fused whole.  stages:
    copies of shared buffers that a software pipeline keeps.  fits: the gate that says for which tiles this is the nest:
    groups begin where blocks do, for instance."""

    body: tuple[Loop | Store, ...]
    buffers: tuple[Buffer, ...]
    blankets: dict[Store, Blanket] = field(default_factory=dict)
    stages: int = 1
    fits: Expr = field(default_factory=lambda: const(1))

    def stores(self) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
        """Every store in program order with its loops, outermost first."""
        yield from _walk(self.body, ())

    def __str__(self) -> str:
        from felixlike.symbolic.program_text import program_text

        return program_text(self)


def _walk(body: tuple[Loop | Store, ...], path: tuple[Loop, ...]) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
    for node in body:
        if isinstance(node, Store):
            yield node, path
        else:
            yield from _walk(node.body, (*path, node))


def stores_under(node: Loop | Store) -> Iterator[Store]:
    """The stores in a subtree, in program order."""
    if isinstance(node, Store):
        yield node
        return
    for child in node.body:
        yield from stores_under(child)


def data_parallel(loop: Loop) -> bool:
    """Whether no store under the loop uses it for its reduction (TVM's GetLoopIterType)."""
    return not any(loop.variable in store.reduction for store in stores_under(loop))


def affine(expression: Expr, loop_variables: tuple[Expr, ...]) -> Index | None:
    """expression as a quasi-affine function of the loop variables, or None where it is not one.

    The strides are in the order of `loop_variables`."""
    expression, floors = _without_rests(expand(expression), loop_variables)
    constant, terms = linear_parts(expression)
    offset: Expr = const(constant)
    strides: dict[Expr, Expr] = {}
    for term, factor in terms:
        parts = product_parts(term)[1]
        held = [(b, e) for b, e in parts if _depends(b, loop_variables)]
        if not held:
            offset += term * factor
            continue
        if len(held) > 1 or held[0][1] != 1:
            return None
        base = held[0][0]
        rest = mul([factor, term, 1 / base])
        if base in loop_variables:
            strides[base] = strides.get(base, const(0)) + rest
            continue
        inner = _dividend(base, loop_variables)
        if inner is None or not rest.is_const or rest.value <= 0:
            return None
        divisor, scale = int(base.args[1].value), int(rest.value)
        # ⌊x / d⌋ = ⌊(x + s·d) / d⌋ − s
        floors.append(Floor(inner[0], divisor, scale))
        offset -= inner[1] * scale
    ordered = tuple((v, strides[v]) for v in loop_variables if v in strides)
    return Index(offset, ordered, tuple(floors))


def _without_rests(expression: Expr, loop_variables: tuple[Expr, ...]) -> tuple[Expr, list[Floor | Rest]]:
    """expression = what is left + rests: k·x − k·d·⌊x / d⌋ = k·(x mod d)."""
    rests: list[Floor | Rest] = []
    for term, factor in linear_parts(expression)[1]:
        inner = _dividend(term, loop_variables) if factor < 0 else None
        if inner is None:
            continue
        divisor = int(term.args[1].value)
        if factor % divisor == 0:
            count = -int(factor) // divisor
            rests.append(Rest(inner[0], divisor, count))
            expression = expand(expression - term * factor - term.args[0] * count)
    return expression, rests


def _dividend(base: Expr, loop_variables: tuple[Expr, ...]) -> tuple[Index, int] | None:
    """x + s·d ≥ 0 and s for ⌊x / d⌋ with a number d that depends on loops; None for other expressions."""
    if base.op is not Op.FLOORDIV or not base.args[1].is_const or not _depends(base.args[0], loop_variables):
        return None
    inner, divisor = affine(base.args[0], loop_variables), int(base.args[1].value)
    lowest = _lowest(inner) if inner is not None else -math.inf
    if inner is None or not math.isfinite(lowest):
        return None
    shift = max(0, math.ceil(-lowest / divisor))
    return replace(inner, offset=inner.offset + shift * divisor), shift


def _lowest(index: Index) -> float:
    """No value of the index is less."""
    straight = index.offset.low + sum((v * c).low for v, c in index.strides)
    return straight + sum(
        _lowest(f.inner) // f.divisor * f.factor if isinstance(f, Floor) else 0.0 for f in index.floors
    )


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


def carry(floor: Floor | Rest, outer: frozenset[Expr], extents: Mapping[Expr, Expr]) -> Expr:
    """1 where for some iterations ⌊(a + b) / d⌋ is not ⌊a / d⌋ + ⌊b / d⌋, else 0.

    a: what the loops in `outer` and the offset add up to.  b: what the other loops do."""
    a, b = floor.inner.without(lambda v: v not in outer), floor.inner.without(outer.__contains__)
    b = replace(b, offset=b.offset - floor.inner.offset)
    parts = [floordiv(part.expression, floor.divisor) for part in (floor.inner, a, b)]
    wide = b.span(extents)[1] + 1
    return ends_of(parts[0] - parts[1] - parts[2], extents, (wide,))[1]


def _depends(expression: Expr, loop_variables: tuple[Expr, ...]) -> bool:
    if expression in loop_variables:
        return True
    return any(_depends(a, loop_variables) for a in expression.args)
