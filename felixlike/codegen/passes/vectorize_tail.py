"""Loops over vectors that do not divide what they run over: whole vectors first, then the tail in halves.

In: an IRModule of scheduled PrimFuncs in which a schedule marked loops with `Peel`. Out: the same without blocks, the
marked loops peeled. TVM would test every lane of every iteration, and so compute none of them in vectors: it vectorises
no loop under such a test, and its own peeling (pragma_loop_partition_hint) loses sight of loops counted in int64, as
those of Relax are. Whoever compiles without this gets the same values, slowly.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module, Stmt, TirExpr
from felixlike.codegen.annotations import Peel
from felixlike.codegen.passes.loop_tools import like, unmarked, variable_like, with_marked_loops
from felixlike.hardware.vectors import power_of_two_below

_UNROLLED = 4
"""Vectors between seams that are computed without a test."""


def peel_tails(module: Module) -> Module:
    """The IRModule with marked loops peeled: functions without any are left alone."""
    return with_marked_loops(module, Peel, lambda _: _whole_and_tail, flat=True)


def _whole_and_tail(loop: Loop) -> Stmt:
    mark = Peel.of(loop)
    length, lanes = mark.length, mark.lanes
    if not mark.seams:
        return _tvm.tirx.stmt_seq(
            *_peeled(loop, length, int(loop.body.extent), lanes, lambda iteration: (iteration, 0))
        )
    parts, width = [], _UNROLLED * lanes
    for start, end in pairwise([0, *mark.seams, length]):
        parts += _peeled(loop, end - start, width, lanes, partial(_behind, start, width))
    return _tvm.tirx.stmt_seq(*parts)


def _behind(seam: int, width: int, iteration: TirExpr) -> tuple[Any, Any]:
    return 0, iteration * width + seam


def _peeled(loop: Loop, length: int, width: int, lanes: int, begin: Callable[[Any], tuple[Any, Any]]) -> list[Any]:
    """A stretch of elements.  begin: number of an iteration of `width` elements → outer and inner variable there."""
    whole, tail = divmod(length, width)
    # The first iteration stands alone: it is the one in which a reduction puts its initial values.
    parts = _vectors(loop, begin(0), width, lanes) if whole else []
    if whole > 1:
        counter = variable_like(loop.loop_var)
        body = _tvm.tirx.stmt_seq(*_vectors(loop, begin(counter), width, lanes))
        parts.append(_tvm.tirx.For(counter, like(counter, 1), like(counter, whole - 1), _tvm.tirx.ForKind.SERIAL, body))
    return [*parts, *_vectors(loop, begin(whole), tail, lanes)]


def _vectors(loop: Loop, begin: tuple[Any, Any], size: int, lanes: int) -> list[Any]:
    """Some elements: as many vectors as fit, then halves of one."""
    outer, first = begin
    inner = unmarked(loop.body, _tvm.substituted(loop.body.body, {loop.loop_var: outer}))
    return [piece(inner, first + start, part) for start, part in halves(0, size, lanes)]


def halves(start: int, size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """`size` elements from `start` on as (start, size) of vectors: as many whole ones as fit, then halves of one."""
    stop = start + size
    while start < stop:
        vector = min(lanes, power_of_two_below(stop - start))
        yield start, vector
        start += vector


def piece(loop: Loop, start: Any, size: int) -> Stmt:
    """Some neighbouring iterations of a loop, at once.  start: the first of them, a number or an expression."""
    lane = variable_like(loop.loop_var)
    first = like(lane, start) if isinstance(start, int) else start
    body = _tvm.substituted(loop.body, {loop.loop_var: lane + first if size > 1 else first})
    return (
        _tvm.tirx.For(lane, like(lane, 0), like(lane, size), _tvm.tirx.ForKind.VECTORIZED, body) if size > 1 else body
    )
