"""RewriteCooperativeFetch: the threads of a block share the work of a copy into shared memory.

    for ax0 in a:                         for s in ⌈a·b / (threads·v)⌉:
        for ax1 in b:             →           for t in threads (threadIdx.x):
            A_shared[ax0, ax1] = …                for l in v (vector):
                                                      A_shared[…] = …   if (s·threads + t)·v + l < a·b

The vector length v falls back to 1 where it does not divide a·b, and for elements wider than 4 bytes. Follows TVM's
rewrite_cooperative_fetch.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expression import Expr, const, equals, floordiv, mul, select
from felixlike.symbolic.program import Fetch, Loop, Program

_WIDEST = 4
"""Bytes of the widest element that is still copied in vectors."""


def cooperative_fetch(program: Program, notes: Mapping[str, tuple[int, Expr]]) -> Program:
    """The program with its fetches.

    notes: for each block that is copied together, how many of its innermost loops are, and the vector length."""
    fetches = dict(program.fetches)
    for store, path in program.stores():
        if store.block not in notes:
            continue
        count, vector = notes[store.block]
        total = mul(loop.extent for loop in path[len(path) - count :])
        if max(access.buffer.item_bytes for access in store.accesses) > _WIDEST:
            vector = const(1)
        divides = equals(floordiv(total, vector) * vector, total)
        fetches[store] = Fetch(count, total, _threads(path), select(divides, vector, 1))
    return replace(program, fetches=fetches)


def _threads(path: tuple[Loop, ...]) -> Expr:
    """How many threads run the copy."""
    bound = [loop.extent for loop in path if loop.thread == "threadIdx.x"]
    if not bound:
        raise UnsupportedSketch("a copy that no threads share", where="cooperative fetch")
    return mul(bound)
