"""Loops over vectors that do not divide what they run over: whole vectors first, then the rest in halves.

In: an IRModule of scheduled PrimFuncs in which a schedule marked loops with PEEL. Out: the same without blocks, the
marked loops peeled. TVM would test every lane of every iteration, and so compute none of them in vectors: it vectorises
no loop under such a test, and its own peeling (pragma_loop_partition_hint) loses sight of loops counted in int64, as
those of Relax are. Whoever compiles without this gets the same values, slowly.
"""

from collections.abc import Iterator
from typing import Any

from felixlike.lowering.marks import unmarked, with_marked_loops

PEEL = "felixlike.peel"
"""Annotation of a loop that holds nothing but one loop over lanes, in which outer · lanes + lane is tested to be below
a length.  Its value: [length, elements of a vector]."""


def peel_rests(module: Any) -> Any:
    """The IRModule with marked loops peeled: functions without any are left alone."""
    return with_marked_loops(module, PEEL, lambda _: _whole_and_rest)


def _whole_and_rest(loop: Any) -> Any:
    from felixlike.tvmlib import tirx

    length, lanes = (int(value) for value in loop.annotations[PEEL])
    width = int(loop.body.extent)
    whole = length // width
    # The first iteration stands alone: it is the one in which a reduction puts its initial values.
    parts = _vectors(loop, 0, width, lanes)
    if whole > 1:
        counter = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty.dtype))
        body = tirx.stmt_seq(*_vectors(loop, counter, width, lanes))
        parts.append(tirx.For(counter, like(counter, 1), like(counter, whole - 1), tirx.ForKind.SERIAL, body))
    return tirx.stmt_seq(*parts, *_vectors(loop, whole, length % width, lanes))


def _vectors(loop: Any, iteration: Any, size: int, lanes: int) -> list[Any]:
    """The first elements of one iteration: as many vectors as fit, then halves of one."""
    from felixlike import tvmlib

    body = tvmlib.substituted(loop.body.body, {loop.loop_var: iteration})
    return [piece(unmarked(loop.body, body), *part) for part in halves(0, size, lanes)]


def halves(start: int, size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """`size` elements from `start` on as (start, size) of vectors: as many whole ones as fit, then halves of one."""
    stop = start + size
    while start < stop:
        vector = min(lanes, 1 << ((stop - start).bit_length() - 1))
        yield start, vector
        start += vector


def piece(loop: Any, start: int, size: int) -> Any:
    """Some neighbouring iterations of a loop, at once."""
    from felixlike import tvmlib
    from felixlike.tvmlib import tirx

    lane = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty.dtype))
    place = lane + like(lane, start) if size > 1 else like(lane, start)
    body = tvmlib.substituted(loop.body, {loop.loop_var: place})
    return tirx.For(lane, like(lane, 0), like(lane, size), tirx.ForKind.VECTORIZED, body) if size > 1 else body


def like(variable: Any, value: int) -> Any:
    """A number of a variable's type."""
    from felixlike.tvmlib import tirx

    return tirx.const(value, str(variable.ty.dtype))
