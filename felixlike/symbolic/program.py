"""A symbolic program: the loop nest of a sketch with expressions for extents, read back from a live TVM schedule.

In: a replayed schedule and its table of variables. Out: `Program`, a tree of loops and stores. Every loop is kept, also
those that may have extent 1, so that one program stands for all structures the sketch lowers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from felixlike.signs import showable
from felixlike.symbolic.comparison import select
from felixlike.symbolic.expression import Expr, const, floordiv, mul
from felixlike.symbolic.indices import Index
from felixlike.symbolic.polynomial import expand


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

        return showable(program_text(self))


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
