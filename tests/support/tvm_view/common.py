"""Split reductions across threads into two stores, as TVM does before it extracts features.

    for i (blocks):                        for i (blocks):
        for k (threads):            →          for k (threads):
            C[i] ⊕= A[i, k]                        in_thread_C[0] ⊕= A[i, k]
                                               C[i] = cross_thread_C[0]

Input: a program and the values of its expressions. Output: a program with two stores for each such reduction. Between
them, the threads reduce in a call that the extractor ignores. If every thread has one element, that call reads the
element itself, and only the last store remains.
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


class _Lowering(Enum):
    """How TVM lowers a reduction across threads: to two stores, to the last of them, or not as a reduction."""

    APART = "apart"
    AT_ONCE = "at once"
    UNSEEN = "unseen"


ZERO, ONE = const(0), const(1)
"""Expressions of the new stores."""


def apart(program: Program, value: Value, words: Mapping[str, Words]) -> Program:
    """Return the program with reductions across threads split as TVM splits them at the point."""
    common = [
        (store, path) for store, path in program.stores() if any(_reduces_across_threads(loop, store) for loop in path)
    ]
    if not common:
        return program
    loops = Loops(program, value, words)
    terms = Terms(loops)
    return replace(
        program, body=tuple(_body(program.body, {s: _lowering_of(s, path, loops, terms) for s, path in common}))
    )


def _lowering_of(store: Store, path: tuple[Loop, ...], loops: Loops, terms: Terms) -> _Lowering:
    """Return how TVM lowers a reduction across threads.

    TVM drops loops of one iteration first, but does not simplify the resulting 0 · 64 + t. If a guard limits the
    reduction, TVM does not recognize all remainders."""
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
    affine_indices = _tvm.sym.detect_iter_map(list(places.values()), ranges, guard, level).indices
    if places and not affine_indices:
        return _Lowering.UNSEEN
    reduces_within_threads = any(
        kind not in THREADS and loops.value(extent) > 1
        for loop in path
        if loop.variable in store.reduction
        for kind, extent in (loop.share.parts if loop.share is not None else ((loop.thread, loop.extent),))
    )
    return _Lowering.APART if reduces_within_threads or guards else _Lowering.AT_ONCE


def _body(nodes: tuple[Loop | Store, ...], lowerings: Mapping[Store, _Lowering]) -> Iterator[Loop | Store]:
    for node in nodes:
        if isinstance(node, Store):
            yield _written_back(node) if lowerings.get(node) is _Lowering.AT_ONCE else node
            continue
        store = _only(node)
        if store is None or lowerings.get(store) is not _Lowering.APART or node.variable not in store.reduction:
            yield replace(node, body=tuple(_body(node.body, lowerings)))
            continue
        yield _within_threads(node)
        yield _written_back(store)


def _only(node: Loop | Store) -> Store | None:
    """Return the store of a subtree with exactly one store, or None."""
    while isinstance(node, Loop):
        if len(node.body) != 1:
            return None
        node = node.body[0]
    return node


def _reduces_across_threads(loop: Loop, store: Store) -> bool:
    bound = loop.thread == "threadIdx.x" or (loop.share is not None and loop.share.among("threadIdx.x"))
    return bound and loop.variable in store.reduction


def _one_element(store: Store, name: str) -> Access:
    """Return an access to the one element of a buffer that is private to a thread."""
    target = store.target.buffer
    private_buffer = Buffer(f"{name}_{target.name}", (ONE,), target.item_bytes, internal=True, scope="local")
    return Access(private_buffer, (Index(ZERO, ()),))


def _within_threads(node: Loop | Store) -> Loop | Store:
    """Return the reduction into an element that is private to the thread."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(map(_within_threads, node.body)))
    private_element, target = _one_element(node, "in_thread"), node.target.buffer
    return replace(
        node,
        target=private_element,
        loads=tuple(private_element if load.buffer is target else load for load in node.loads),
    )


def _written_back(store: Store) -> Store:
    """Return the store of the sum over all threads to the reduction's target."""
    return replace(
        store,
        loads=(_one_element(store, "cross_thread"),),
        repeats=(1,),
        operations=(),
        reduction=frozenset(),
        is_reduction=False,
        text="",
    )
