"""Model RewriteParallelVectorizeUnroll: outer loops fuse into a parallel loop, inner ones into a vector loop.

    for i_0 in t0:                 parallel f in t0·t1:
        for i_1 in t1:      →          for k in t2:
            for k in t2:                   vector j in t3:
                for j in t3:                   …
                    …

The number of fused loops depends on the tiles, so every loop gets a gate. Rules, from TVM's
rewrite_parallel_vectorize_unroll.cc:
- parallel: from the outermost loop, as long as loops are data-parallel, not annotated and contain one statement. The
  loop
  that makes the product exceed the limit is still included, the next is not.
- vector: from the innermost loop, likewise, but the loop that would exceed the limit is excluded, and accesses must
  stay contiguous.
- A loop eligible for both is vectorised. If every loop of a nest is eligible for both, the nest is fully fused and
  split by
  the limit.
- The outermost loop of a reduction's nest gets the unroll annotation, which excludes later stores in that nest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from felixlike.symbolic.expr.comparison import at_least, at_most, equals, select
from felixlike.symbolic.expr.expression import Expr, const, mul
from felixlike.symbolic.program import Access, FullyFusedNest, Loop, Program, Store, data_parallel


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the root block's annotations.

    Attributes:
        parallel: The largest product of extents that are fused into the parallel loop; None: no such fusion.
        vector: The largest product of extents that are fused into the vector loop; None: no such fusion.
        unroll: The largest number of unrolled steps, an expression (0: none).
    """

    parallel: int | None
    vector: int | None
    unroll: Expr


@dataclass(slots=True)
class _LoopGates:
    """Hold the gates decided so far for one loop."""

    parallel: Expr
    vector: Expr
    unroll: Expr


def parallel_vectorize_unroll(program: Program, limits: Limits) -> Program:
    """Return the program with parallel, vector and unroll gates on its loops."""
    loop_gates: dict[Loop, _LoopGates] = {}
    blankets: dict[Store, FullyFusedNest] = {}
    for store, path in program.stores():
        if not path:
            continue
        fused_nest = _decide_gates(store, path, limits, loop_gates)
        if fused_nest is not None:
            blankets[store] = fused_nest
    body = tuple(_with_gates(node, loop_gates) for node in program.body)
    return replace(program, body=body, blankets=blankets)


def _with_gates(node: Loop | Store, loop_gates: Mapping[Loop, _LoopGates]) -> Loop | Store:
    """Return a node with the gates of its loops."""
    if isinstance(node, Store):
        return node
    gates = loop_gates[node]
    body = tuple(_with_gates(child, loop_gates) for child in node.body)
    return replace(node, body=body, parallel=gates.parallel, vector=gates.vector, unroll=gates.unroll)


def _decide_gates(
    store: Store, path: tuple[Loop, ...], limits: Limits, loop_gates: dict[Loop, _LoopGates]
) -> FullyFusedNest | None:
    """Decide the gates of the loops around one store; return the full fusion of its nest, if possible."""
    free = [1 - at_least(loop_gates[loop].unroll, 1) if loop in loop_gates else const(1) for loop in path]
    fusible = _fusible(store, path)
    vector = _vector_gates(path, free, fusible, limits)
    parallel = [p * (1 - v) for p, v in zip(_parallel_gates(path, free, limits), vector, strict=True)]
    fused_nest = _full_fusion(path, free, fusible, limits)
    unroll = limits.unroll if store.is_reduction else const(0)
    for i, loop in enumerate(path):
        if loop not in loop_gates:
            not_fused = const(1) if fused_nest is None else 1 - fused_nest.gate
            loop_gates[loop] = _LoopGates(parallel[i] * not_fused, vector[i] * not_fused, const(0))
    outer = loop_gates[path[0]]
    # A nest is annotated once; for a later store of the same nest, the annotation already exists.
    outer.unroll = outer.unroll if not (outer.unroll.is_const and outer.unroll.value == 0) else unroll
    return fused_nest


def _parallel_gates(path: tuple[Loop, ...], free: list[Expr], limits: Limits) -> list[Expr]:
    """Return, for each loop, the gate of whether the parallel fusion from the outside reaches it."""
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
    """Return, for each loop, the gate of whether the vector fusion from the inside includes it."""
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


def _full_fusion(
    path: tuple[Loop, ...], free: list[Expr], fusible: list[Expr], limits: Limits
) -> FullyFusedNest | None:
    """Return the full fusion of a nest; None if its structure forbids it."""
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
    """Return, for each loop, whether it and all loops inside access every region contiguously."""
    gates: list[Expr] = [const(1)] * len(path)
    for region in store.regions:
        for i, gate in enumerate(_contiguous(region, path)):
            gates[i] = gates[i] * gate
    return gates


def _contiguous(region: Access, path: tuple[Loop, ...]) -> list[Expr]:
    """Return, for each loop, whether it and all loops inside access one region contiguously."""
    gates: list[Expr] = [const(0)] * len(path)
    reached: Expr = const(1)
    begun: Expr = const(0)  # whether an inner loop moves the access
    covered: Expr = const(1)  # elements that the last such loop covers
    for i in reversed(range(len(path))):
        moves, stride = _stride(region, path[i])
        # The first loop that moves the access must have stride one, unless it is the innermost loop.
        first = const(1) if i == len(path) - 1 else equals(stride, 1)
        reached = reached * select(moves, select(begun, equals(stride, covered), first), 1)
        covered = select(moves, stride * path[i].extent, covered)
        begun = begun + moves - begun * moves
        gates[i] = reached
    return gates


def _stride(region: Access, loop: Loop) -> tuple[Expr, Expr]:
    """Return the gate of whether the loop moves the access, and its stride in the rightmost dimension that it moves."""
    step: Expr = const(1)
    moves: Expr = const(0)
    stride: Expr = const(1)
    for index, extent in zip(reversed(region.indices), reversed(region.buffer.shape), strict=True):
        if any(loop.variable is v for v, _ in index.strides):
            # TVM's analysis ignores subtractions: an index x − 1, as padding creates it, seems to use no loop.
            seen = at_least(index.offset, 0)
            stride = select(moves, stride, index.stride(loop.variable) * step)
            moves = moves + seen - moves * seen
        step = step * extent
    return moves, stride
