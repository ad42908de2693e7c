"""Predict the length of a GPU kernel's source before anything is built.

TVM writes unrolled loops out, and NVIDIA's compiler takes many seconds for long source. Input: a symbolic program.
Output: an expression for the number of characters. The copies follow TVM: few virtual threads are always written out,
then the innermost loops as long as their statements do not exceed the unroll step (inject_virtual_thread.cc,
unroll_loop.cc), and the steps of a software pipeline before and after its loop. The length of a statement is an
estimate, fitted to the source of 1,500 candidates of 23 workloads. Of 2,400 candidates of other workloads, half are
predicted at 0.8 to 1.5 times their actual length, with a rank correlation of 0.92.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from felixlike.symbolic.expr.comparison import at_least, at_most, equals, select
from felixlike.symbolic.expr.expression import Expr, add, const, mul
from felixlike.symbolic.program.loops import PIPELINE, Loop
from felixlike.symbolic.program.program import Program
from felixlike.symbolic.program.stores import Store

_VIRTUAL = "vthread.x"
_MOST_WRITTEN_OUT = 15
"""Maximum number of virtual threads that TVM writes out; it generates a loop for more."""

_STATEMENT, _INITIAL, _FETCH, _LANE, _KERNEL = 230, 770, 45, 4, 5200
"""Characters of a statement, of an initial statement of a sum (`_INITIAL`), of a copy into shared memory (`_FETCH`), of
each element that it moves (`_LANE`), and of the kernel around them (`_KERNEL`). All are fitted, see above.
"""

_INSTRUCTION, _OWNED = 2000, 4
"""Characters of a tensor-core instruction with its operands, and the outputs that one thread owns of it (`_OWNED`)."""

_AROUND_PIPELINE = 2
"""Number of times that the computation of a software pipeline is written: in its loop, and after it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """Count the copies of statements in the source.

    Attributes:
        steps: The number of statements, as TVM counts them.
        whole: The gate of whether all loops inside were unrolled.
        written: For each store, its loops and how often its text is written.
    """

    steps: Expr
    whole: Expr
    written: tuple[tuple[Store, tuple[Loop, ...], Expr], ...]

    def unrolled(self, extent: Expr, most: Expr) -> _Copies:
        """Return the copies inside a loop, which is unrolled if it has at most `most` statements."""
        gate = self.whole * (1 - at_least(self.steps * extent - most, 1))
        written = tuple((store, path, select(gate, count * extent, count)) for store, path, count in self.written)
        steps = select(gate, self.steps * extent, self.steps)
        return _Copies(steps, select(equals(extent, 1), self.whole, gate), written)


def source_characters(program: Program) -> Expr:
    """Return the approximate number of characters of CUDA source that TVM writes for a program."""
    unroll_steps = (loop.unroll for _, path in program.stores() for loop in path)
    most = next((step for step in unroll_steps if not step.is_const or step.value), const(0))
    entries = [copies for node in program.body for copies in _copies(node, (), most, program.stages).written]
    return const(_KERNEL) + add(_length(store, path, count, most) for store, path, count in entries)


def _length(store: Store, path: tuple[Loop, ...], count: Expr, most: Expr) -> Expr:
    """Return the characters of a store that is written `count` times."""
    lanes = [extent for loop in path if loop.share is not None for kind, extent in loop.share.parts if kind == "vector"]
    if lanes and store.target.buffer.scope == "shared":
        return count * _FETCH + count * lanes[-1] * _LANE
    if lanes:
        return count * _FETCH
    statement: Expr = const(_STATEMENT)
    if store.at_once > 1:
        statement = path[-1].extent * path[-2].extent * (_INSTRUCTION / _OWNED)
    return count * statement + (_initial(store, path, most) * _INITIAL if store.is_reduction else const(0))


def _initial(store: Store, path: tuple[Loop, ...], most: Expr) -> Expr:
    """Return how often a sum's initial statement is written; the output's loops inside the sum's loops surround it."""
    first = next((i for i, loop in enumerate(path) if loop.thread == PIPELINE or loop.variable in store.reduction), 0)
    copies = _alone(store, path, most)
    for loop in reversed(path[first:]):
        if not loop.thread and loop.variable not in store.reduction:
            copies = copies.unrolled(loop.extent, most)
    ((_, _, count),) = copies.written
    return count


def _copies(node: Loop | Store, path: tuple[Loop, ...], most: Expr, stages: int) -> _Copies:
    """Return the copies of the statements of a loop or store."""
    if isinstance(node, Store):
        return _alone(node, path, most)
    inner = _together(_copies(child, (*path, node), most, stages) for child in node.body)
    if node.thread and node.thread != PIPELINE:
        return inner
    if node.share is None:
        copies = inner.unrolled(node.extent, most)
    elif isinstance(node.body[0], Loop) and node.body[0].share is node.share:
        return inner  # loops that are fused count once, at the innermost
    else:
        copies = inner.unrolled(mul([const(1), *(e for kind, e in node.share.parts if kind == "serial")]), most)
    if node.thread != PIPELINE:
        return copies
    times = [stages if store.target.buffer.scope == "shared" else _AROUND_PIPELINE for store, _, _ in copies.written]
    written = tuple((s, p, count * n) for (s, p, count), n in zip(copies.written, times, strict=True))
    return _Copies(copies.steps, copies.whole, written)


def _alone(store: Store, path: tuple[Loop, ...], most: Expr) -> _Copies:
    """Return the copies of one statement: one for each virtual thread on which its accesses depend."""
    access_variables = frozenset[Expr]().union(*(access.variables for access in store.accesses))
    virtual = mul(
        [const(1), *(loop.extent for loop in path if loop.thread == _VIRTUAL and loop.variable in access_variables)]
    )
    few = at_most(virtual, _MOST_WRITTEN_OUT)
    count = select(few, virtual, 1)
    return _Copies(count, const(1), ((store, path, count),)).unrolled(select(few, 1, virtual), most)


def _together(copies: Iterable[_Copies]) -> _Copies:
    """Return the copies of several nodes, added up."""
    parts = list(copies)
    written = tuple(entry for one in parts for entry in one.written)
    return _Copies(add(one.steps for one in parts), mul([const(1), *(one.whole for one in parts)]), written)
