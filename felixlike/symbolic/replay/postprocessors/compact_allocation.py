"""CompactBufferAllocation: an intermediate buffer shrinks to what is used of it where it is allocated.

    alloc C_global[512, 512]                  for i_0, j_0:
    for i_0, j_0:                      →          alloc C_global[t1, t3]
        C_global[i_0·t1 + i, j_0·t3 + j]              C_global[i, j]

A buffer is allocated under the innermost loop that holds all its accesses. Follows TVM's passes
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
    """The program with every internal buffer as small as its accesses allow."""
    paths = allocation_paths(program)
    extents = {loop.variable: loop.extent for _, path in program.stores() for loop in path}
    homes: dict[Buffer, _Home] = {}
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
        if windows and buffer.scope == "shared":  # there is a limit on what TVM allocates
            raise UnsupportedSketch(f"{buffer.name} holds windows that begin between outer loops", where="allocation")
        fits += [1 - carry(floor, outer, extents) for _, _, floor in mixed if windows]
        shape = _shape(buffer, accesses, outer, whole, extents, fits)
        loose = _loose(mixed, outer, extents) if buffer.scope == "shared" else ()
        small = replace(buffer, shape=shape, full=buffer.shape if mixed else (), loose=loose)
        homes[buffer] = _Home(small, outer, whole)
    stores: dict[Store, Store] = {}
    body = tuple(_rebuild(node, homes, stores) for node in program.body)
    return replace(
        program,
        fits=mul([program.fits, *fits]),
        body=body,
        buffers=tuple(homes[b].buffer if b in homes else b for b in program.buffers),
        blankets={stores[s]: blanket for s, blanket in program.blankets.items()},
    )


@dataclass(frozen=True, slots=True)
class _Home:
    """How a buffer is allocated.  buffer: as small as it gets.  outer: variables of the loops around the allocation.
    whole: for each dimension, whether one access alone goes through all of it."""

    buffer: Buffer
    outer: frozenset[Expr]
    whole: tuple[bool, ...]


def _shared_by(loop: Loop, buffer: Buffer) -> bool:
    """Whether all iterations of a loop around the allocation see the same buffer: threads see shared memory."""
    return buffer.scope == "shared" and loop.thread in WITHIN_BLOCK


def allocation_paths(program: Program) -> dict[Buffer, tuple[Loop, ...]]:
    """For each internal buffer, the loops around its allocation: those that all its accesses share."""
    paths: dict[Buffer, tuple[Loop, ...]] = {}
    for store, path in program.stores():
        for access in store.accesses:
            buffer = access.buffer
            if not buffer.internal:
                continue
            around = initial_path(store, path) if access is store.target else path
            paths[buffer] = _common(paths[buffer], around) if buffer in paths else around
    return paths


def _common(a: tuple[Loop, ...], b: tuple[Loop, ...]) -> tuple[Loop, ...]:
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
    """The buffer's shape; to `fits` come gates that say for which tiles it is."""
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
    """Whether one access alone goes through the whole dimension wherever the loops around the allocation are."""
    for index in indices:
        if not index.variables & outer:
            first, last = index.span({v: extents[v] for v in index.variables})
            if first.is_const and first.value == 0 and expand(last - full + 1) is const(0):
                return True
    return False


def _moving(index: Index, outer: frozenset[Expr]) -> Expr:
    """The part of an index that the loops around the allocation move."""
    kept = index.without(lambda v: v not in outer)
    return expand(kept.expression - index.offset)


def _together(fixed: Expr, base: Expr, buffer: Buffer, extents: dict[Expr, Expr]) -> Expr:
    """A gate: whether the loops around the allocation move two accesses by the same."""
    difference = expand(fixed - base)
    low, high = (difference, difference) if difference.is_const else ends_of(difference, extents, ())
    gate = at_least(low, 0) * at_most(high, 0)
    if gate.is_const and not gate.value:
        raise UnsupportedSketch(
            f"{buffer.name} is accessed at places that move apart between outer loops", where="allocation"
        )
    return gate


def _mixed(accesses: list[Access], outer: frozenset[Expr]) -> Iterator[tuple[int, Index, Floor | Remainder]]:
    """(dimension, index, its floor or remainder) of those that loops around an allocation move, and others too: groups,
    which need not begin where those loops do; or, with remainders, windows, which here must, so that each is the sum of
    both parts."""
    for access in accesses:
        for dimension, index in enumerate(access.indices):
            for floor in index.floors:
                if floor.inner.variables & outer and not floor.inner.variables <= outer:
                    yield dimension, index, floor


def _loose(
    mixed: list[tuple[int, Index, Floor | Remainder]], outer: frozenset[Expr], extents: dict[Expr, Expr]
) -> tuple[tuple[int, Expr], ...]:
    """(dimension, gate: whether TVM may allocate more of it than is used).

    Its simplifier finds where groups begin if blocks of iterations are made of whole groups, or lie within one; but not
    for the latter if the rest of the index then goes through all of the group."""
    gates: dict[int, Expr] = {}
    for dimension, index, floor in mixed:
        own = floor.inner.without(outer.__contains__)
        low, high = own.span({v: extents[v] for v in own.variables})
        block = expand(high - low + 1)
        rest = replace(index.without(outer.__contains__), floors=())
        low, high = rest.span({v: extents[v] for v in rest.variables})
        full = at_least(expand(high - low + 1), floor.factor)

        def tells(values: Mapping[str, int], block: Expr = block, group: int = floor.divisor) -> tuple[int, int]:
            size = round(evaluate(block, values))
            return int(size % group != 0), int(group % size != 0)

        apart, across = by_cases(variables([block]), tells, (block,))
        gate = apart * maximum(full, across)
        gates[dimension] = maximum(gates.get(dimension, const(0)), gate)
    return tuple(gates.items())


def _rebuild(node: Loop | Store, homes: dict[Buffer, _Home], stores: dict[Store, Store]) -> Loop | Store:
    if isinstance(node, Loop):
        return replace(node, body=tuple(_rebuild(child, homes, stores) for child in node.body))
    stores[node] = replace(
        node,
        target=_rebased(node.target, homes),
        loads=tuple(_rebased(load, homes) for load in node.loads),
    )
    return stores[node]


def _rebased(access: Access, homes: dict[Buffer, _Home]) -> Access:
    """The access within the small buffer: terms of the loops around the allocation drop out."""
    home = homes.get(access.buffer)
    if home is None:
        return access
    indices = tuple(index.without(home.outer.__contains__) for index in access.indices)
    written = tuple(
        own if whole else small for own, small, whole in zip(access.indices, indices, home.whole, strict=True)
    )
    unmoved = access.indices if home.buffer.grouped else ()
    return Access(home.buffer, indices, written if written != indices else (), unmoved)
