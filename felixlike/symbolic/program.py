"""A symbolic program: the loop nest of a sketch with expressions for extents, read back from a live TVM schedule.

In: a replayed schedule and its table of variables. Out: `Program`, a tree of loops and stores. Every loop is kept, also
those that may have extent 1, so that one program stands for all structures the sketch lowers to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expression import (
    Expr,
    Op,
    const,
    expand,
    floordiv,
    linear_parts,
    mul,
    product_parts,
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
    scope: where it lies: "global", "shared" by the threads of a block, or "local" to one."""

    name: str
    shape: tuple[Expr, ...]
    item_bytes: int
    internal: bool
    scope: str = "global"


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
class Index:
    """One quasi-affine index: offset + Σ stride · loop variable + Σ factor · ⌊another / divisor⌋."""

    offset: Expr
    strides: tuple[tuple[Expr, Expr], ...]
    """(loop variable, its coefficient), in the order in which TVM names them."""
    floors: tuple[Floor, ...] = ()

    @property
    def expression(self) -> Expr:
        """The index as one expression."""
        affine = self.offset + sum((v * c for v, c in self.strides), const(0))
        return affine + sum((floor.of(floor.inner.expression) for floor in self.floors), const(0))

    @property
    def variables(self) -> frozenset[Expr]:
        """The loop variables that occur."""
        own = frozenset(v for v, _ in self.strides)
        return own.union(*(floor.inner.variables for floor in self.floors))

    def stride(self, variable: Expr) -> Expr:
        """The coefficient of a loop variable outside floors; 0 where it does not occur."""
        return dict(self.strides).get(variable, const(0))

    def span(self, extents: Mapping[Expr, Expr]) -> tuple[Expr, Expr]:
        """Smallest and largest value while the loops of `extents` run and all others stand at 0."""
        low = high = self.offset
        for variable, stride in self.strides:
            if variable not in extents:
                continue
            way = stride * (extents[variable] - 1)
            if stride.low >= 0:
                high = high + way
            elif stride.high <= 0:
                low = low + way
            else:
                raise UnsupportedSketch("the direction of an access depends on the tiles", where=str(self.expression))
        for floor in self.floors:
            inner = floor.inner.span(extents)
            low, high = low + floor.of(expand(inner[0])), high + floor.of(expand(inner[1]))
        return expand(low), expand(high)

    def without(self, leaves: Callable[[Expr], bool]) -> Index:
        """The index with the loop variables that `leaves` names standing at 0."""
        floors = tuple(
            Floor(f.inner.without(leaves), f.divisor, f.factor)
            for f in self.floors
            if not all(leaves(v) for v in f.inner.variables)
        )
        return Index(self.offset, tuple((v, c) for v, c in self.strides if not leaves(v)), floors)


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write of one element of a buffer.

    indices: where it lies, loops around the buffer's allocation standing at 0.  written: the same as TVM writes it:
    within dimensions that are allocated whole such loops still move; empty where that makes no difference."""

    buffer: Buffer
    indices: tuple[Index, ...]
    written: tuple[Index, ...] = ()

    def uses(self, variable: Expr) -> bool:
        """Whether the element depends on a loop variable."""
        return any(variable in index.variables for index in self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One statement `target[…] = value`.

    loads: the distinct reads in `value` (reads of the target included).  repeats: how often each occurs.  operations:
    how often each kind of arithmetic is done in one execution, index arithmetic not counted.  spatial, reduction: loop
    variables its data-parallel and its reduction iterators depend on.  regions: what TVM notes as its block's reads and
    writes, for the postprocessors."""

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
    empty.  share: how it and its neighbours of the same share are fused and split anew."""

    variable: Expr
    extent: Expr
    body: tuple[Loop | Store, ...]
    parallel: Expr = field(default_factory=lambda: const(0))
    vector: Expr = field(default_factory=lambda: const(0))
    unroll: Expr = field(default_factory=lambda: const(0))
    thread: str = ""
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
    copies of shared buffers that a software pipeline keeps.  fits: the gate that says for which tiles this is the nest;
    TVM cuts a loop that would run past all its block computes."""

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
    constant, terms = linear_parts(expand(expression))
    offset: Expr = const(constant)
    strides: dict[Expr, Expr] = {}
    floors: list[Floor] = []
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
        floor = _floor(base, rest, loop_variables)
        if floor is None:
            return None
        floors.append(floor[0])
        offset += floor[1]
    ordered = tuple((v, strides[v]) for v in loop_variables if v in strides)
    return Index(offset, ordered, tuple(floors))


def _floor(base: Expr, factor: Expr, loop_variables: tuple[Expr, ...]) -> tuple[Floor, int] | None:
    """factor · base as a `Floor` and a number to add, where base is a floor division by a number."""
    if base.op is not Op.FLOORDIV or not base.args[1].is_const or not factor.is_const or factor.value <= 0:
        return None
    divisor, scale = int(base.args[1].value), int(factor.value)
    lowest = base.args[0].low
    if not math.isfinite(lowest):
        return None
    shift = max(0, math.ceil(-lowest / divisor))  # ⌊x / d⌋ = ⌊(x + s·d) / d⌋ − s, so that nothing is negative
    inner = affine(base.args[0] + shift * divisor, loop_variables)
    return None if inner is None else (Floor(inner, divisor, scale), -shift * scale)


def _depends(expression: Expr, loop_variables: tuple[Expr, ...]) -> bool:
    if expression in loop_variables:
        return True
    return any(_depends(a, loop_variables) for a in expression.args)
