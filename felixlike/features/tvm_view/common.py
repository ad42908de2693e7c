"""Reductions that threads make together, taken apart as TVM does before its extractor looks.

    for i (blocks):                        for i (blocks):
        for k (threads):            →          for k (threads):
            C[i] ⊕= A[i, k]                        in_thread_C[0] ⊕= A[i, k]
                                               C[i] = cross_thread_C[0]

In: a program. Out: one with two stores in the place of each such reduction; in between, the threads reduce in a call
that the extractor passes over. Where every thread has one element, that call reads it itself, and only the last store
is left.
Follows TVM's lower_cross_thread_reduction.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from felixlike.symbolic.expression import const
from felixlike.symbolic.indices import Index
from felixlike.symbolic.program import Access, Buffer, Loop, Program, Store


class Way(Enum):
    """What TVM makes of a common reduction: the two stores, the last of them only, or nothing, where it does not see
    that it is a reduction."""

    APART = "apart"
    AT_ONCE = "at once"
    UNSEEN = "unseen"


ZERO, ONE = const(0), const(1)
"""Expressions that are in the new stores."""


def common_reductions(program: Program) -> list[tuple[Store, tuple[Loop, ...]]]:
    """The stores that threads reduce to together, with their loops."""
    return [(store, path) for store, path in program.stores() if any(_by_threads(loop, store) for loop in path)]


def apart(program: Program, ways: Mapping[Store, Way]) -> Program:
    """The program with common reductions taken apart."""
    return replace(program, body=tuple(_body(program.body, ways)))


def _body(nodes: tuple[Loop | Store, ...], ways: Mapping[Store, Way]) -> Iterator[Loop | Store]:
    for node in nodes:
        if isinstance(node, Store):
            yield _written_back(node) if ways.get(node) is Way.AT_ONCE else node
            continue
        store = _only(node)
        if store is None or ways.get(store) is not Way.APART or node.variable not in store.reduction:
            yield replace(node, body=tuple(_body(node.body, ways)))
            continue
        yield _within_threads(node)
        yield _written_back(store)


def _only(node: Loop | Store) -> Store | None:
    """The store of a subtree that holds no other."""
    while isinstance(node, Loop):
        if len(node.body) != 1:
            return None
        node = node.body[0]
    return node


def _by_threads(loop: Loop, store: Store) -> bool:
    bound = loop.thread == "threadIdx.x" or (loop.share is not None and loop.share.among("threadIdx.x"))
    return bound and loop.variable in store.reduction


def _one_element(store: Store, name: str) -> Access:
    """The element that one thread has for itself."""
    target = store.target.buffer
    own = Buffer(f"{name}_{target.name}", (ONE,), target.item_bytes, internal=True, scope="local")
    return Access(own, (Index(ZERO, ()),))


def _within_threads(node: Loop | Store) -> Loop | Store:
    """The reduction with its sum in an element of the thread's own."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(map(_within_threads, node.body)))
    own, target = _one_element(node, "in_thread"), node.target.buffer
    return replace(node, target=own, loads=tuple(own if load.buffer is target else load for load in node.loads))


def _written_back(store: Store) -> Store:
    """The sum of all threads, written where it belongs."""
    return replace(
        store,
        loads=(_one_element(store, "cross_thread"),),
        repeats=(1,),
        operations=(),
        reduction=frozenset(),
        is_reduction=False,
        text="",
    )
