"""Model RewriteCooperativeFetch: the threads of a block share a copy into shared memory.

    for ax0 in a:                         for s in ⌈a·b / (threads·v)⌉:
        for ax1 in b:             →           for t in threads (threadIdx.x):
            A_shared[ax0, ax1] = …                for l in v (vector):
                                                      A_shared[…] = …   if (s·threads + t)·v + l < a·b

The vector length v is 1 if it does not divide a·b, and for elements wider than 4 bytes. Follows TVM's
rewrite_cooperative_fetch.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.expression import Expr, ceildiv, const, floordiv, mul
from felixlike.symbolic.program import Loop, PredicatedSplit, Program, Store

_WIDEST = 4
"""Size of the widest element that is copied in vectors, in bytes."""


def cooperative_fetch(program: Program, notes: Mapping[str, tuple[int, Expr]]) -> Program:
    """Return the program with the splits of its cooperative fetches.

    Args:
        program: The program.
        notes: For each cooperatively fetched block, the number of its innermost loops that are shared, and the vector
            length.
    """
    shares: dict[Loop, PredicatedSplit] = {}
    for store, path in program.stores():
        if store.block in notes:
            count, vector = notes[store.block]
            members = path[len(path) - count :]
            shares.update(dict.fromkeys(members, _share(store, path, members, vector)))
    return replace(program, body=tuple(_with_shares(node, shares) for node in program.body))


def _share(store: Store, path: tuple[Loop, ...], members: tuple[Loop, ...], vector: Expr) -> PredicatedSplit:
    """Return the split of one copy."""
    bound = [loop.extent for loop in path if loop.thread == "threadIdx.x"]
    if not bound:
        raise UnsupportedSketch("the copy is not inside a loop bound to threadIdx.x", where=f"block {store.block}")
    threads, total = mul(bound), mul(loop.extent for loop in members)
    if max(access.buffer.item_bytes for access in store.accesses) > _WIDEST:
        vector = const(1)
    divides = at_least(floordiv(total, vector) * vector - total, 0)  # the difference is never positive
    vector = select(divides, vector, 1)
    return PredicatedSplit(
        (("serial", ceildiv(total, threads * vector)), ("threadIdx.x", threads), ("vector", vector)), (0, 1, 2)
    )


def _with_shares(node: Loop | Store, shares: Mapping[Loop, PredicatedSplit]) -> Loop | Store:
    """Return a node with the splits of its loops."""
    if isinstance(node, Store):
        return node
    body = tuple(_with_shares(child, shares) for child in node.body)
    return replace(node, body=body, share=shares.get(node, node.share))
