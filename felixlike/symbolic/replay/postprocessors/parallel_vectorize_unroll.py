"""RewriteParallelVectorizeUnroll: outer loops fuse into a parallel loop, inner ones into a vector loop.

    for i_0 in t0:                 parallel f in t0·t1:
        for i_1 in t1:      →          for k in t2:
            for k in t2:                   vector j in t3:
                for j in t3:                   …
                    …

How many loops fuse depends on the tiles, so every loop gets a gate. Rules, from TVM's
rewrite_parallel_vectorize_unroll.cc:
- parallel: from the outermost loop, as long as loops are data-parallel, not annotated and hold one statement; the
  loop that makes the product exceed the limit is still included, the next is not;
- vector: from the innermost loop, likewise, but the loop that would exceed the limit is left out, and accesses must
  stay contiguous;
- a loop wanted by both is vectorised; a nest whose every loop could be both is fused whole and split by the limit;
- the outermost loop of a reduction's nest gets the unroll note, which stops later stores in that nest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from felixlike.symbolic.expr.comparison import at_least, at_most, equals, select
from felixlike.symbolic.expr.expression import Expr, const, mul
from felixlike.symbolic.program import Access, FullyFusedNest, Loop, Program, Store, data_parallel


@dataclass(frozen=True, slots=True)
class Limits:
    """The root block's notes.  parallel, vector: largest products of fused extents (None: no such fusing).
    unroll: largest number of unrolled steps, an expression (0: none)."""

    parallel: int | None
    vector: int | None
    unroll: Expr


@dataclass(slots=True)
class _Marks:
    """What is decided so far for one loop."""

    parallel: Expr
    vector: Expr
    unroll: Expr


def parallel_vectorize_unroll(program: Program, limits: Limits) -> Program:
    """The program with parallel, vector and unroll gates on its loops."""
    marks: dict[Loop, _Marks] = {}
    blankets: dict[Store, FullyFusedNest] = {}
    for store, path in program.stores():
        if not path:
            continue
        blanket = _mark(store, path, limits, marks)
        if blanket is not None:
            blankets[store] = blanket
    body = tuple(_marked(node, marks) for node in program.body)
    return replace(program, body=body, blankets=blankets)


def _marked(node: Loop | Store, marks: Mapping[Loop, _Marks]) -> Loop | Store:
    if isinstance(node, Store):
        return node
    mark = marks[node]
    body = tuple(_marked(child, marks) for child in node.body)
    return replace(node, body=body, parallel=mark.parallel, vector=mark.vector, unroll=mark.unroll)


def _mark(store: Store, path: tuple[Loop, ...], limits: Limits, marks: dict[Loop, _Marks]) -> FullyFusedNest | None:
    free = [1 - at_least(marks[loop].unroll, 1) if loop in marks else const(1) for loop in path]
    fusible = _fusible(store, path)
    vector = _vector_gates(path, free, fusible, limits)
    parallel = [p * (1 - v) for p, v in zip(_parallel_gates(path, free, limits), vector, strict=True)]
    blanket = _blanket(path, free, fusible, limits)
    unroll = limits.unroll if store.is_reduction else const(0)
    for i, loop in enumerate(path):
        if loop not in marks:
            apart = const(1) if blanket is None else 1 - blanket.gate
            marks[loop] = _Marks(parallel[i] * apart, vector[i] * apart, const(0))
    outer = marks[path[0]]
    # A nest is annotated once; a later store of the same nest finds the note there already.
    outer.unroll = outer.unroll if not (outer.unroll.is_const and outer.unroll.value == 0) else unroll
    return blanket


def _parallel_gates(path: tuple[Loop, ...], free: list[Expr], limits: Limits) -> list[Expr]:
    """For each loop, whether the parallel walk from the outside reaches it."""
    gates: list[Expr] = []
    reached: Expr = const(1 if limits.parallel is not None else 0)
    product: Expr = const(1)
    for loop, unannotated in zip(path, free, strict=True):
        if not data_parallel(loop):
            reached = const(0)
        reached = reached * unannotated
        gates.append(reached)
        product = product * loop.extent
        if limits.parallel is not None:
            reached = reached * at_most(product, limits.parallel)
        if len(loop.body) > 1:
            reached = const(0)
    return gates


def _vector_gates(path: tuple[Loop, ...], free: list[Expr], fusible: list[Expr], limits: Limits) -> list[Expr]:
    """For each loop, whether the vector walk from the inside takes it."""
    gates: list[Expr] = [const(0)] * len(path)
    if limits.vector is None:
        return gates
    reached: Expr = const(1)
    product: Expr = const(1)
    for i in reversed(range(len(path))):
        loop = path[i]
        if not data_parallel(loop) or len(loop.body) > 1:
            break
        product = product * loop.extent
        reached = reached * free[i] * fusible[i] * at_most(product, limits.vector)
        gates[i] = reached
    return gates


def _blanket(path: tuple[Loop, ...], free: list[Expr], fusible: list[Expr], limits: Limits) -> FullyFusedNest | None:
    """The fusing of a whole nest, where nothing in its structure forbids it."""
    if limits.parallel is None or limits.vector is None:
        return None
    if not all(data_parallel(loop) and len(loop.body) == 1 for loop in path):
        return None
    total = mul(loop.extent for loop in path)
    gate = mul([*free, *fusible, at_least(total, 2)])
    if gate.is_const and gate.value == 0:
        return None
    return FullyFusedNest(gate, total, limits.vector)


def _fusible(store: Store, path: tuple[Loop, ...]) -> list[Expr]:
    """For each loop, whether it and all loops inside access every region contiguously."""
    gates: list[Expr] = [const(1)] * len(path)
    for region in store.regions:
        for i, gate in enumerate(_contiguous(region, path)):
            gates[i] = gates[i] * gate
    return gates


def _contiguous(region: Access, path: tuple[Loop, ...]) -> list[Expr]:
    gates: list[Expr] = [const(0)] * len(path)
    reached: Expr = const(1)
    begun: Expr = const(0)  # whether a loop further inside moves through memory
    covered: Expr = const(1)  # elements that the last such loop goes through
    for i in reversed(range(len(path))):
        moves, stride = _stride(region, path[i])
        # The first loop that moves through memory must do so in steps of one, unless it is the innermost loop.
        first = const(1) if i == len(path) - 1 else equals(stride, 1)
        reached = reached * select(moves, select(begun, equals(stride, covered), first), 1)
        covered = select(moves, stride * path[i].extent, covered)
        begun = begun + moves - begun * moves
        gates[i] = reached
    return gates


def _stride(region: Access, loop: Loop) -> tuple[Expr, Expr]:
    """Whether the loop moves through memory (a gate), and the elements that a step moves by, in the rightmost dimension
    that it moves."""
    step: Expr = const(1)
    moves: Expr = const(0)
    stride: Expr = const(1)
    for index, extent in zip(reversed(region.indices), reversed(region.buffer.shape), strict=True):
        if any(loop.variable is v for v, _ in index.strides):
            # TVM's walk does not look into subtractions: an index x − 1, as padding makes them, seems to use no loop.
            seen = at_least(index.offset, 0)
            stride = select(moves, stride, index.stride(loop.variable) * step)
            moves = moves + seen - moves * seen
        step = step * extent
    return moves, stride
