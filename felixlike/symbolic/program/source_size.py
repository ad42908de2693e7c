"""How long the source of a GPU's kernel will be, before anything is built.

TVM writes unrolled loops out, and NVIDIA's compiler takes many seconds for long source. In: a symbolic program. Out: an
expression, characters. What is written out follows TVM: few virtual threads always, then the innermost loops as long
as their statements are no more than the unroll step (inject_virtual_thread.cc, unroll_loop.cc); steps of a software
pipeline before and after its loop. How long statements are is an estimate, fitted to the source of 1,500 candidates of
23 workloads. Of 2,400 of other workloads half are predicted at 0.8 to 1.5 times what they are, ranks correlate by 0.92.
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
"""Virtual threads up to which TVM writes each of them out; more become a loop."""

_STATEMENT, _INITIAL, _FETCH, _LANE, _KERNEL = 230, 770, 45, 4, 5200
"""Characters of a statement, of one that begins a sum, of a copy into shared memory and of each element it moves, and
of a kernel around them."""

_INSTRUCTION, _OWNED = 2000, 4
"""Characters of an instruction of tensor cores with its operands, and outputs of a thread that it has."""

_AROUND_PIPELINE = 2
"""Times that what a software pipeline computes is written: in its loop, and after it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """steps: statements, as TVM counts them.  whole: gate, whether all loops within were unrolled.  written: how often
    the text of each store stands there."""

    steps: Expr
    whole: Expr
    written: tuple[tuple[Store, tuple[Loop, ...], Expr], ...]

    def unrolled(self, extent: Expr, most: Expr) -> _Copies:
        """Inside a loop, which is unrolled if its statements are no more than `most`."""
        gate = self.whole * (1 - at_least(self.steps * extent - most, 1))
        written = tuple((store, path, select(gate, count * extent, count)) for store, path, count in self.written)
        steps = select(gate, self.steps * extent, self.steps)
        return _Copies(steps, select(equals(extent, 1), self.whole, gate), written)


def source_characters(program: Program) -> Expr:
    """About how many characters of CUDA source TVM writes for a program."""
    steps = (loop.unroll for _, path in program.stores() for loop in path)
    most = next((step for step in steps if not step.is_const or step.value), const(0))
    found = [copies for node in program.body for copies in _copies(node, (), most, program.stages).written]
    return const(_KERNEL) + add(_length(store, path, count, most) for store, path, count in found)


def _length(store: Store, path: tuple[Loop, ...], count: Expr, most: Expr) -> Expr:
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
    """How often the statement that begins a sum is written: it has the loops of the output within those of the sum."""
    first = next((i for i, loop in enumerate(path) if loop.thread == PIPELINE or loop.variable in store.reduction), 0)
    copies = _alone(store, path, most)
    for loop in reversed(path[first:]):
        if not loop.thread and loop.variable not in store.reduction:
            copies = copies.unrolled(loop.extent, most)
    ((_, _, count),) = copies.written
    return count


def _copies(node: Loop | Store, path: tuple[Loop, ...], most: Expr, stages: int) -> _Copies:
    if isinstance(node, Store):
        return _alone(node, path, most)
    inner = _together(_copies(child, (*path, node), most, stages) for child in node.body)
    if node.thread and node.thread != PIPELINE:
        return inner
    if node.share is None:
        found = inner.unrolled(node.extent, most)
    elif isinstance(node.body[0], Loop) and node.body[0].share is node.share:
        return inner  # loops that are fused count once, at the innermost
    else:
        found = inner.unrolled(mul([const(1), *(e for kind, e in node.share.parts if kind == "serial")]), most)
    if node.thread != PIPELINE:
        return found
    times = [stages if store.target.buffer.scope == "shared" else _AROUND_PIPELINE for store, _, _ in found.written]
    written = tuple((s, p, count * n) for (s, p, count), n in zip(found.written, times, strict=True))
    return _Copies(found.steps, found.whole, written)


def _alone(store: Store, path: tuple[Loop, ...], most: Expr) -> _Copies:
    """A statement of all virtual threads that see it differently."""
    own = frozenset[Expr]().union(*(access.variables for access in store.accesses))
    virtual = mul([const(1), *(loop.extent for loop in path if loop.thread == _VIRTUAL and loop.variable in own)])
    few = at_most(virtual, _MOST_WRITTEN_OUT)
    count = select(few, virtual, 1)
    return _Copies(count, const(1), ((store, path, count),)).unrolled(select(few, 1, virtual), most)


def _together(copies: Iterable[_Copies]) -> _Copies:
    found = list(copies)
    written = tuple(entry for one in found for entry in one.written)
    return _Copies(add(one.steps for one in found), mul([const(1), *(one.whole for one in found)]), written)
