"""Model RewriteLayout: a constant is laid out in the order in which the loops around its reader access it.

    for j_0, i_0, k, j_1:                     for j_0, i_0, k, j_1:
        C[…] += A[…] · B[k, j_0·16 + j_1]  →      C[…] += A[…] · B_global[(j_0·K + k)·16 + j_1]

The copy is made when a model is compiled, so it is not a store of the program. TVM gives the new buffer a dimension for
each loop that moves it, the outermost first. Here it has one dimension, with the same memory: all loops inside another
access neighbouring elements. Follows TVM's rewrite_layout.cc and SuggestIndexMap (layout.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.expression import Expr, ceildiv, const, mul
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.program import Access, Buffer, Index, Loop, Program, Store


def rewrite_layout(program: Program, free: Collection[str]) -> Program:
    """Return the program with new layouts of the parameters named in `free`.

    Raises:
        UnsupportedSketch: If TVM's new layout is unknown.
    """
    packed: dict[Store, Access] = {}
    for name in free:
        uses = [(s, path, a) for s, path in program.stores() for a in s.accesses if _is(a.buffer, name)]
        if not uses:
            continue  # a block that runs once already packs it
        if len(uses) != 1 or uses[0][0] in program.blankets:
            raise UnsupportedSketch(f"{name} has a free layout, but is not read exactly once", where="layout")
        store, path, access = uses[0]
        packed[store] = _packed(access, path)
    if not packed:
        return program

    def change(store: Store) -> Store:
        access = packed.get(store)
        if access is None:
            return store
        return replace(store, loads=tuple(access if a.buffer is access.buffer.origin else a for a in store.loads))

    new_buffers = {a.buffer.origin: a.buffer for a in packed.values() if a.buffer.origin is not None}
    return _changed(program, change, new_buffers)


def packed_constants(program: Program, packed: Collection[str]) -> list[Buffer]:
    """Return the constants that are packed.

    Args:
        program: The program after `rewrite_layout`.
        packed: Names of the constants that the schedule itself has packed.
    """
    return [b for b in program.buffers if b.origin is not None or (b.name in packed and not b.internal)]


def with_item_bytes(program: Program, buffers: Collection[Buffer], item_bytes: int) -> Program:
    """Return the program with another size of the elements of some buffers, in bytes."""
    narrow = {buffer: replace(buffer, item_bytes=item_bytes) for buffer in buffers}

    def of(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(replace(a, buffer=narrow.get(a.buffer, a.buffer)) for a in accesses)

    def change(store: Store) -> Store:
        (target,) = of((store.target,))
        return replace(store, target=target, loads=of(store.loads), regions=of(store.regions))

    return _changed(program, change, narrow)


def _changed(program: Program, change: Callable[[Store], Store], buffers: dict[Buffer, Buffer]) -> Program:
    """Return a program with changed stores and buffers."""
    stores: dict[Store, Store] = {}
    body = tuple(_rebuild(node, change, stores) for node in program.body)
    return replace(
        program,
        body=body,
        buffers=tuple(buffers.get(buffer, buffer) for buffer in program.buffers),
        blankets={stores[s]: blanket for s, blanket in program.blankets.items()},
    )


def _is(buffer: Buffer, name: str) -> bool:
    """Return whether a buffer is the parameter of this name."""
    return buffer.name == name and not buffer.internal


def _packed(access: Access, path: tuple[Loop, ...]) -> Access:
    """Return an access in the new layout."""
    moving_loops = [loop for loop in path if access.uses(loop.variable)]
    extents: dict[Expr, Expr] = {}
    for index, extent in zip(access.indices, access.buffer.shape, strict=True):
        digits = [loop for loop in moving_loops if loop.variable in index.variables]
        extents |= _extents_of_digits(access.buffer, index, extent, digits)
    if sum(len(index.variables) for index in access.indices) != len(moving_loops):
        raise UnsupportedSketch(f"a loop variable indexes two dimensions of {access.buffer.name}", where="layout")
    shape = [extents[loop.variable] for loop in moving_loops]
    strides = [mul(shape[place + 1 :]) for place in range(len(shape))]
    index = Index(const(0), tuple((loop.variable, step) for loop, step in zip(moving_loops, strides, strict=True)))
    buffer = replace(access.buffer, name=f"{access.buffer.name}_global", shape=(mul(shape),), origin=access.buffer)
    return Access(buffer, (index,), access.indices)


def _extents_of_digits(buffer: Buffer, index: Index, extent: Expr, loops: list[Loop]) -> dict[Expr, Expr]:
    """Return the extent of the new dimension of each loop, by its variable.

    The loops, outermost first, must be the digits of the index, which takes each value below the extent once. It may
    take larger ones, whose elements are not read; the new dimension has no place for those beyond the last digit.

    Raises:
        UnsupportedSketch: If they are not.
    """
    covered: Expr = const(1)
    is_mixed_radix = index.lookup is None and not index.floors and expand(index.offset) is const(0)
    extents: dict[Expr, Expr] = {}
    for loop in reversed(loops):
        is_mixed_radix = is_mixed_radix and expand(index.stride(loop.variable) - covered) is const(0)
        extents[loop.variable] = loop.extent
        inner, covered = covered, covered * loop.extent
    beyond = expand(covered - extent)
    if loops and beyond.is_const and beyond.value > 0:
        extents[loops[0].variable] = ceildiv(extent, inner)
    elif beyond is not const(0):
        is_mixed_radix = False
    if not is_mixed_radix:
        raise UnsupportedSketch(
            f"{buffer.name} has a free layout, but its loops do not traverse its dimensions one after the other",
            where="layout",
        )
    return extents


def _rebuild(node: Loop | Store, change: Callable[[Store], Store], stores: dict[Store, Store]) -> Loop | Store:
    """Return a node with changed stores, and record the new stores."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(_rebuild(child, change, stores) for child in node.body))
    stores[node] = change(node)
    return stores[node]
