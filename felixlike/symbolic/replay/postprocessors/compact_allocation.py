"""Model CompactBufferAllocation: an intermediate buffer shrinks to the part that is used where it is allocated.

    alloc C_global[512, 512]                  for i_0, j_0:
    for i_0, j_0:                      →          alloc C_global[t1, t3]
        C_global[i_0·t1 + i, j_0·t3 + j]              C_global[i, j]

A buffer is allocated under the innermost loop that contains all its accesses. Follows TVM's passes
PlanAndUpdateBufferAllocationLocation and CompactBufferAllocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.cases import by_cases
from felixlike.symbolic.expr.comparison import at_least, at_most, maximum, minimum
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.expr.expression import Expr, const, mul
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.expr.traversal import variables
from felixlike.symbolic.program import WITHIN_BLOCK, Access, Buffer, Floor, Index, Loop, Program, Remainder, Store
from felixlike.symbolic.program.affine import carry
from felixlike.symbolic.program.indices import ends_of
from felixlike.symbolic.replay.postprocessors.reduction_block import initial_path


def compact_allocation(program: Program) -> Program:
    """Return the program with every internal buffer as small as its accesses allow.

    Raises:
        UnsupportedSketch: If the accesses to a buffer do not allow a fixed shape.
    """
    paths = allocation_paths(program)
    extents = {loop.variable: loop.extent for _, path in program.stores() for loop in path}
    allocations: dict[Buffer, _Allocation] = {}
    fits: list[Expr] = []
    for buffer in program.buffers:
        if not buffer.internal:
            continue
        outer = frozenset(loop.variable for loop in paths[buffer] if not _shared_by(loop, buffer))
        accesses = [a for s, _ in program.stores() for a in s.accesses if a.buffer is buffer]
        whole = tuple(
            _covered([access.indices[dimension] for access in accesses], full, outer, extents)
            for dimension, full in enumerate(buffer.shape)
        )
        mixed = list(_mixed(accesses, outer))
        windows = any(isinstance(floor, Remainder) for _, _, floor in mixed)
        if windows and buffer.scope == "shared":  # the size of the allocation is limited
            raise UnsupportedSketch(
                f"an index of shared buffer {buffer.name} is a remainder of loops inside and outside its allocation",
                where="allocation",
            )
        fits += [1 - carry(floor, outer, extents) for _, _, floor in mixed if windows]
        shape = _shape(buffer, accesses, outer, whole, extents, fits)
        loose_dimensions = _loose(mixed, outer, extents) if buffer.scope == "shared" else ()
        compacted = replace(buffer, shape=shape, full=buffer.shape if mixed else (), loose=loose_dimensions)
        allocations[buffer] = _Allocation(compacted, outer, whole)
    stores: dict[Store, Store] = {}
    body = tuple(_rebuild(node, allocations, stores) for node in program.body)
    return replace(
        program,
        fits=mul([program.fits, *fits]),
        body=body,
        buffers=tuple(allocations[b].buffer if b in allocations else b for b in program.buffers),
        blankets={stores[s]: blanket for s, blanket in program.blankets.items()},
    )


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Describe the allocation of a buffer.

    Attributes:
        buffer: The compacted buffer.
        outer: The variables of the loops around the allocation.
        whole: For each dimension, whether a single access covers all of it.
    """

    buffer: Buffer
    outer: frozenset[Expr]
    whole: tuple[bool, ...]


def _shared_by(loop: Loop, buffer: Buffer) -> bool:
    """Return whether all iterations of a loop around the allocation use the same buffer, as for shared memory."""
    return buffer.scope == "shared" and loop.thread in WITHIN_BLOCK


def allocation_paths(program: Program) -> dict[Buffer, tuple[Loop, ...]]:
    """Return, for each internal buffer, the loops around its allocation: those that all its accesses share."""
    paths: dict[Buffer, tuple[Loop, ...]] = {}
    for store, path in program.stores():
        for access in store.accesses:
            buffer = access.buffer
            if not buffer.internal:
                continue
            access_path = initial_path(store, path) if access is store.target else path
            paths[buffer] = _common(paths[buffer], access_path) if buffer in paths else access_path
    return paths


def _common(a: tuple[Loop, ...], b: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the common outer loops of two paths."""
    shared: list[Loop] = []
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        shared.append(x)
    return tuple(shared)


def _shape(
    buffer: Buffer,
    accesses: list[Access],
    outer: frozenset[Expr],
    whole: tuple[bool, ...],
    extents: dict[Expr, Expr],
    fits: list[Expr],
) -> tuple[Expr, ...]:
    """Return the buffer's shape, and append to `fits` the gates of the tiles for which it holds."""
    shape = []
    for dimension, full in enumerate(buffer.shape):
        if whole[dimension] or any(access.indices[dimension].lookup is not None for access in accesses):
            shape.append(full)
            continue
        low: Expr | None = None
        high: Expr | None = None
        base: Expr | None = None
        for access in accesses:
            index = access.indices[dimension]
            base = _moving(index, outer) if base is None else base
            fits.append(_together(_moving(index, outer), base, buffer, extents))
            first, last = index.span({v: extents[v] for v in index.variables - outer})
            low = first if low is None else minimum(low, first)
            high = last if high is None else maximum(high, last)
        assert low is not None
        assert high is not None
        shape.append(minimum(expand(high - low + 1), full))
    return tuple(shape)


def _covered(indices: list[Index], full: Expr, outer: frozenset[Expr], extents: dict[Expr, Expr]) -> bool:
    """Return whether one access covers the whole dimension in every iteration of the loops around the allocation."""
    for index in indices:
        if not index.variables & outer:
            first, last = index.span({v: extents[v] for v in index.variables})
            if first.is_const and first.value == 0 and expand(last - full + 1) is const(0):
                return True
    return False


def _moving(index: Index, outer: frozenset[Expr]) -> Expr:
    """Return the part of an index that depends on the loops around the allocation."""
    outer_part = index.without(lambda v: v not in outer)
    return expand(outer_part.expression - index.offset)


def _together(fixed: Expr, base: Expr, buffer: Buffer, extents: dict[Expr, Expr]) -> Expr:
    """Return the gate of whether the loops around the allocation move two accesses equally."""
    difference = expand(fixed - base)
    low, high = (difference, difference) if difference.is_const else ends_of(difference, extents, ())
    gate = at_least(low, 0) * at_most(high, 0)
    if gate.is_const and not gate.value:
        raise UnsupportedSketch(
            f"the loops around the allocation of {buffer.name} move its accesses by different distances",
            where="allocation",
        )
    return gate


def _mixed(accesses: list[Access], outer: frozenset[Expr]) -> Iterator[tuple[int, Index, Floor | Remainder]]:
    """Yield (dimension, index, floor or remainder) of those that depend on loops both around and inside an allocation.

    Floors are groups, which need not begin where those loops do. With remainders, they are windows, which must begin
    there, so that each is the sum of both parts.
    """
    for access in accesses:
        for dimension, index in enumerate(access.indices):
            for floor in index.floors:
                if floor.inner.variables & outer and not floor.inner.variables <= outer:
                    yield dimension, index, floor


def _loose(
    mixed: list[tuple[int, Index, Floor | Remainder]], outer: frozenset[Expr], extents: dict[Expr, Expr]
) -> tuple[tuple[int, Expr], ...]:
    """Return (dimension, gate of whether TVM may allocate more of it than is used).

    TVM's simplifier finds the beginnings of groups if blocks of iterations consist of whole groups or lie within one,
    but not in the latter case if the rest of the index covers the whole group.
    """
    gates: dict[int, Expr] = {}
    for dimension, index, floor in mixed:
        inner = floor.inner.without(outer.__contains__)
        low, high = inner.span({v: extents[v] for v in inner.variables})
        block = expand(high - low + 1)
        rest = replace(index.without(outer.__contains__), floors=())
        low, high = rest.span({v: extents[v] for v in rest.variables})
        full = at_least(expand(high - low + 1), floor.factor)

        def tells(values: Mapping[str, int], block: Expr = block, group: int = floor.divisor) -> tuple[int, int]:
            size = round(evaluate(block, values))
            return int(size % group != 0), int(group % size != 0)

        not_whole_groups, crosses_groups = by_cases(variables([block]), tells, (block,))
        gate = not_whole_groups * maximum(full, crosses_groups)
        gates[dimension] = maximum(gates.get(dimension, const(0)), gate)
    return tuple(gates.items())


def _rebuild(node: Loop | Store, allocations: dict[Buffer, _Allocation], stores: dict[Store, Store]) -> Loop | Store:
    """Return a node with compacted buffers, and record the new stores."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(_rebuild(child, allocations, stores) for child in node.body))
    stores[node] = replace(
        node,
        target=_rebased(node.target, allocations),
        loads=tuple(_rebased(load, allocations) for load in node.loads),
    )
    return stores[node]


def _rebased(access: Access, allocations: dict[Buffer, _Allocation]) -> Access:
    """Return the access to the compacted buffer, without terms of the loops around the allocation."""
    allocation = allocations.get(access.buffer)
    if allocation is None:
        return access
    indices = tuple(index.without(allocation.outer.__contains__) for index in access.indices)
    written = tuple(
        original if whole else compacted
        for original, compacted, whole in zip(access.indices, indices, allocation.whole, strict=True)
    )
    unmoved = access.indices if allocation.buffer.grouped else ()
    return Access(allocation.buffer, indices, written if written != indices else (), unmoved)
