"""Peel loops over vectors that do not divide their length: whole vectors first, then the tail in halves.

Input: an IRModule of scheduled PrimFuncs with loops annotated with `Peel`. Output: the same module without blocks, with
the annotated loops peeled. TVM would test every lane of every iteration, and does not vectorize loops with such a test.
Its own peeling (pragma_loop_partition_hint) does not work on loops with int64 counters, which Relax has. Without this
pass, code computes the same values, slowly.
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
"""Vectors between seams in an iteration without a test."""


def peel_tails(module: Module) -> Module:
    """Return the IRModule with annotated loops peeled. Other functions are not changed."""
    return with_marked_loops(module, Peel, lambda _: _whole_and_tail, flat=True)


def _whole_and_tail(loop: Loop) -> Stmt:
    """Return the replacement of an annotated loop."""
    mark = Peel.of(loop)
    length, lanes = mark.length, mark.lanes
    if not mark.seams:
        return _tvm.tirx.stmt_seq(
            *_peeled(loop, length, int(loop.body.extent), lanes, lambda iteration: (iteration, 0))
        )
    parts, width = [], _UNROLLED * lanes
    for start, end in pairwise([0, *mark.seams, length]):
        parts += _peeled(loop, end - start, width, lanes, partial(_after_seam, start, width))
    return _tvm.tirx.stmt_seq(*parts)


def _after_seam(seam: int, width: int, iteration: TirExpr) -> tuple[Any, Any]:
    """Return the outer and inner variable at an iteration after a seam."""
    return 0, iteration * width + seam


def _peeled(loop: Loop, length: int, width: int, lanes: int, begin: Callable[[Any], tuple[Any, Any]]) -> list[Any]:
    """Return the statements for a stretch of elements.

    `begin` maps the number of an iteration of `width` elements to the outer and inner variable there.
    """
    whole, tail = divmod(length, width)
    # The first iteration is separate: a reduction has its initial values there.
    parts = _vectors(loop, begin(0), width, lanes) if whole else []
    if whole > 1:
        counter = variable_like(loop.loop_var)
        body = _tvm.tirx.stmt_seq(*_vectors(loop, begin(counter), width, lanes))
        parts.append(_tvm.tirx.For(counter, like(counter, 1), like(counter, whole - 1), _tvm.tirx.ForKind.SERIAL, body))
    return [*parts, *_vectors(loop, begin(whole), tail, lanes)]


def _vectors(loop: Loop, begin: tuple[Any, Any], size: int, lanes: int) -> list[Any]:
    """Return the statements for some elements: as many vectors as fit, then halves of one."""
    outer, first = begin
    inner = unmarked(loop.body, _tvm.substituted(loop.body.body, {loop.loop_var: outer}))
    return [piece(inner, first + start, part) for start, part in halves(0, size, lanes)]


def halves(start: int, size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the vectors that cover `size` elements from `start` on, the tail in halves."""
    stop = start + size
    while start < stop:
        vector = min(lanes, power_of_two_below(stop - start))
        yield start, vector
        start += vector


def piece(loop: Loop, start: Any, size: int) -> Stmt:
    """Return consecutive iterations of a loop as a vector. `start` is the first of them, a number or an expression."""
    lane = variable_like(loop.loop_var)
    first = like(lane, start) if isinstance(start, int) else start
    body = _tvm.substituted(loop.body, {loop.loop_var: lane + first if size > 1 else first})
    return (
        _tvm.tirx.For(lane, like(lane, 0), like(lane, size), _tvm.tirx.ForKind.VECTORIZED, body) if size > 1 else body
    )
