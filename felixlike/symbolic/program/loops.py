"""Loops of a symbolic program.

Every loop is kept, also those that may have extent 1, so that one program stands for all structures a sketch lowers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program.stores import Store


@dataclass(frozen=True, slots=True, eq=False)
class PredicatedSplit:
    """Neighbouring loops that are fused and split by factors that need not divide them: a guard skips the rest.

    parts: (kind, extent) of what they become, outermost first; kinds as in `NestLoop`.  places: which part of the split
    each of them is, counted from the one that takes the largest steps."""

    parts: tuple[tuple[str, Expr], ...]
    places: tuple[int, ...]

    def among(self, thread: str) -> bool:
        """Whether one of the parts is bound to a kind of thread."""
        return any(kind == thread for kind, _ in self.parts)


WITHIN_BLOCK = ("threadIdx.x", "threadIdx.y", "vthread.x")
"""What loops are bound to whose iterations run in one block, and see the same shared memory."""


PIPELINE = "pipeline"
"""What a serial loop is bound to that a software pipeline overlaps the iterations of."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """`for variable in range(extent)`.

    parallel, vector: gates that say whether the loop ends up in the fused parallel or vector loop of a store's nest.
    unroll: largest number of unrolled steps (0: none), noted on the outermost loop of a nest.  thread: on GPUs what it
    is bound to ("blockIdx.x" or one of WITHIN_BLOCK, or PIPELINE), fused with its neighbours bound to the same; else
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
    share: PredicatedSplit | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FullyFusedNest:
    """A nest that is fused whole and split by the vector width: outer loop parallel, inner loop vectorised.

    gate: whether this happens.  total: product of the nest's extents.  width: extent of the vector loop."""

    gate: Expr
    total: Expr
    width: int


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
