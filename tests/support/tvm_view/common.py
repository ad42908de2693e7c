"""Reductions that threads make together, taken apart as TVM does before its extractor looks.

    for i (blocks):                        for i (blocks):
        for k (threads):            →          for k (threads):
            C[i] ⊕= A[i, k]                        in_thread_C[0] ⊕= A[i, k]
                                               C[i] = cross_thread_C[0]

In: a program, values of its expressions. Out: one with two stores in the place of each such reduction; in between, the
threads reduce in a call that the extractor passes over. Where every thread has one element, that call reads it itself,
and only the last store is left.
Follows TVM's lower_cross_thread_reduction.cc.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from felixlike import _tvm
from felixlike.symbolic.expr.expression import const
from felixlike.symbolic.program import Access, Buffer, Index, Loop, Program, Store
from support.tvm_view.loops import THREADS, Loops, Value
from support.tvm_view.terms import Terms
from support.tvm_view.words import Words


class _Way(Enum):
    """What TVM makes of a common reduction: the two stores, the last of them only, or nothing, where it does not see
    that it is a reduction."""

    APART = "apart"
    AT_ONCE = "at once"
    UNSEEN = "unseen"


ZERO, ONE = const(0), const(1)
"""Expressions that are in the new stores."""


def apart(program: Program, value: Value, words: Mapping[str, Words]) -> Program:
    """The program with common reductions taken apart as TVM does at the point."""
    common = [(store, path) for store, path in program.stores() if any(_by_threads(loop, store) for loop in path)]
    if not common:
        return program
    loops = Loops(program, value, words)
    terms = Terms(loops)
    return replace(program, body=tuple(_body(program.body, {s: _way(s, path, loops, terms) for s, path in common})))


def _way(store: Store, path: tuple[Loop, ...], loops: Loops, terms: Terms) -> _Way:
    """What TVM makes of a common reduction.

    It drops loops of one iteration first, but does not simplify what is then 0 · 64 + t; and where a guard cuts that
    short, it does not always understand the remainders of it."""
    nest = loops.nest(store, path)
    meaning = terms.meaning(store, nest)
    places = {
        iterator: _tvm.substituted(_tvm.substituted(value, meaning), nest.dropped)
        for iterator, value in loops.words[store.block].places
    }
    guards = [_tvm.substituted(guard, nest.dropped) for guard in nest.guards] + terms.ends(store, places)
    guard = functools.reduce(_tvm.tirx.all, guards, _tvm.tirx.const(1, "bool"))
    ranges = {loop.variable: _tvm.ir.Range(0, loop.extent) for loop in nest.loops}
    level = _tvm.sym.iter_affine_map.IterMapLevel.Surjective
    found = _tvm.sym.detect_iter_map(list(places.values()), ranges, guard, level).indices
    if places and not found:
        return _Way.UNSEEN
    several = any(
        kind not in THREADS and loops.value(extent) > 1
        for loop in path
        if loop.variable in store.reduction
        for kind, extent in (loop.share.parts if loop.share is not None else ((loop.thread, loop.extent),))
    )
    return _Way.APART if several or guards else _Way.AT_ONCE


def _body(nodes: tuple[Loop | Store, ...], ways: Mapping[Store, _Way]) -> Iterator[Loop | Store]:
    for node in nodes:
        if isinstance(node, Store):
            yield _written_back(node) if ways.get(node) is _Way.AT_ONCE else node
            continue
        store = _only(node)
        if store is None or ways.get(store) is not _Way.APART or node.variable not in store.reduction:
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
