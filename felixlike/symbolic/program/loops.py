"""Define the loops of a symbolic program.

Loops that may have extent 1 are kept, so that one program describes all structures that a sketch lowers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program.stores import Store


@dataclass(frozen=True, slots=True, eq=False)
class PredicatedSplit:
    """Describe neighbouring loops that are fused and split by factors that need not divide them, with a guard.

    Attributes:
        parts: (kind, extent) of the resulting loops, outermost first; kinds as in `NestLoop`.
        places: The part of the split that each of them is, counted from the one with the largest steps.
    """

    parts: tuple[tuple[str, Expr], ...]
    places: tuple[int, ...]

    def among(self, thread: str) -> bool:
        """Return whether one of the parts is bound to a kind of thread."""
        return any(kind == thread for kind, _ in self.parts)


WITHIN_BLOCK = ("threadIdx.x", "threadIdx.y", "vthread.x")
"""Bindings of loops whose iterations run in one thread block and access the same shared memory."""


PIPELINE = "pipeline"
"""Binding of a serial loop whose iterations a software pipeline overlaps."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Describe a loop: `for variable in range(extent)`.

    Attributes:
        variable: The loop variable.
        extent: The number of iterations.
        body: The loops and stores inside, in order.
        parallel: The gate of whether the loop becomes part of the fused parallel loop of a store's nest.
        vector: The gate of whether the loop becomes part of the vector loop.
        unroll: The largest number of unrolled steps (0: none), annotated on the outermost loop of a nest.
        thread: The loop's binding on GPUs ("blockIdx.x", one of WITHIN_BLOCK, or PIPELINE), else empty. Neighbouring
            loops with the same binding are fused.
        kind: The kind that the trace itself states ("parallel", "vector", "unrolled"), else empty.
        share: How the loop and its neighbours of the same share are fused and split.
        annotated: Whether the trace annotates the loop. TVM then keeps it even if it runs once.
    """

    variable: Expr
    extent: Expr
    body: tuple[Loop | Store, ...]
    parallel: Expr = field(default_factory=lambda: const(0))
    vector: Expr = field(default_factory=lambda: const(0))
    unroll: Expr = field(default_factory=lambda: const(0))
    thread: str = ""
    kind: str = ""
    share: PredicatedSplit | None = None
    annotated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FullyFusedNest:
    """Describe a nest that is fully fused and split by the vector width: outer loop parallel, inner loop vectorised.

    Attributes:
        gate: 1 for tiles with which this happens, else 0.
        total: The product of the nest's extents.
        width: The extent of the vector loop.
    """

    gate: Expr
    total: Expr
    width: int


def stores_under(node: Loop | Store) -> Iterator[Store]:
    """Yield the stores in a subtree, in program order."""
    if isinstance(node, Store):
        yield node
        return
    for child in node.body:
        yield from stores_under(child)


def data_parallel(loop: Loop) -> bool:
    """Return whether no store under the loop uses it for its reduction (TVM's GetLoopIterType)."""
    return not any(loop.variable in store.reduction for store in stores_under(loop))
