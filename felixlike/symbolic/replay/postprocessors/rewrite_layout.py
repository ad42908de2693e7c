"""RewriteLayout: a constant is laid out in the order in which the loops around its reader walk through it.

    for j_0, i_0, k, j_1:                     for j_0, i_0, k, j_1:
        C[…] += A[…] · B[k, j_0·16 + j_1]  →      C[…] += A[…] · B_global[(j_0·K + k)·16 + j_1]

The copy is made when a model is compiled, so it is no store of the program. TVM gives the new buffer a dimension for
each loop that moves it, the outermost first; here it has one dimension, which is the same memory: all loops inside
another walk through neighbouring elements. Follows TVM's rewrite_layout.cc and SuggestIndexMap (layout.cc).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.expression import Expr, const, mul
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.program import Access, Buffer, Index, Loop, Program, Store


def rewrite_layout(program: Program, free: Collection[str]) -> Program:
    """The program with the parameters named in `free` laid out anew. Raises UnsupportedSketch where TVM's new layout
    is not known."""
    packed: dict[Store, Access] = {}
    for name in free:
        uses = [(s, path, a) for s, path in program.stores() for a in s.accesses if _is(a.buffer, name)]
        if not uses:
            continue  # a block that is run once packs it already
        if len(uses) != 1 or uses[0][0] in program.blankets:
            raise UnsupportedSketch(f"{name} has a free layout but not one reader", where="layout")
        store, path, access = uses[0]
        packed[store] = _packed(access, path)
    if not packed:
        return program
    stores: dict[Store, Store] = {}
    body = tuple(_rebuild(node, packed, stores) for node in program.body)
    anew = {access.buffer.origin: access.buffer for access in packed.values()}
    return replace(
        program,
        body=body,
        buffers=tuple(anew.get(buffer, buffer) for buffer in program.buffers),
        blankets={stores[s]: blanket for s, blanket in program.blankets.items()},
    )


def _is(buffer: Buffer, name: str) -> bool:
    return buffer.name == name and not buffer.internal


def _packed(access: Access, path: tuple[Loop, ...]) -> Access:
    moving = [loop for loop in path if access.uses(loop.variable)]
    for index, extent in zip(access.indices, access.buffer.shape, strict=True):
        _check_digits(access.buffer, index, extent, [loop for loop in moving if loop.variable in index.variables])
    if sum(len(index.variables) for index in access.indices) != len(moving):
        raise UnsupportedSketch(f"a loop moves two dimensions of {access.buffer.name}", where="layout")
    inside = [mul(loop.extent for loop in moving[place + 1 :]) for place in range(len(moving))]
    index = Index(const(0), tuple((loop.variable, step) for loop, step in zip(moving, inside, strict=True)))
    buffer = replace(
        access.buffer,
        name=f"{access.buffer.name}_global",
        shape=(mul(loop.extent for loop in moving),),
        origin=access.buffer,
    )
    return Access(buffer, (index,), access.indices)


def _check_digits(buffer: Buffer, index: Index, extent: Expr, loops: list[Loop]) -> None:
    """Raise UnsupportedSketch unless the loops, outermost first, are the digits of the index, which takes all values
    below the extent once."""
    reached: Expr = const(1)
    plain = index.lookup is None and not index.floors and expand(index.offset) is const(0)
    for loop in reversed(loops):
        plain = plain and expand(index.stride(loop.variable) - reached) is const(0)
        reached = reached * loop.extent
    if not plain or expand(reached - extent) is not const(0):
        raise UnsupportedSketch(
            f"{buffer.name} has a free layout, but loops do not walk through its dimensions one by one", where="layout"
        )


def _rebuild(node: Loop | Store, packed: dict[Store, Access], stores: dict[Store, Store]) -> Loop | Store:
    if isinstance(node, Loop):
        return replace(node, body=tuple(_rebuild(child, packed, stores) for child in node.body))
    access = packed.get(node)
    stores[node] = node
    if access is not None:
        loads = tuple(access if load.buffer is access.buffer.origin else load for load in node.loads)
        stores[node] = replace(node, loads=loads)
    return stores[node]
