"""Loops over vectors that do not divide what they run over: whole vectors first, then the rest in halves.

In: an IRModule of scheduled PrimFuncs in which a schedule marked loops with PEEL. Out: the same without blocks, the
marked loops peeled. TVM would test every lane of every iteration, and so compute none of them in vectors: it vectorises
no loop under such a test, and its own peeling (pragma_loop_partition_hint) loses sight of loops counted in int64, as
those of Relax are. Whoever compiles without this gets the same values, slowly.
"""

from typing import Any

from felixlike.lowering.marks import with_marked_loops

PEEL = "felixlike.peel"
"""Annotation of a loop that holds nothing but one loop over lanes, in which outer · lanes + lane is tested to be below
a length.  Its value: [length, elements of a vector]."""


def peel_rests(module: Any) -> Any:
    """The IRModule with marked loops peeled: functions without any are left alone."""
    return with_marked_loops(module, PEEL, lambda _: _whole_and_rest, flat=True)


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
        parts.append(tirx.For(counter, _like(counter, 1), _like(counter, whole - 1), tirx.ForKind.SERIAL, body))
    return tirx.stmt_seq(*parts, *_vectors(loop, whole, length % width, lanes))


def _vectors(loop: Any, iteration: Any, size: int, lanes: int) -> list[Any]:
    """The first elements of one iteration: as many vectors as fit, then halves of one."""
    statements = []
    start = 0
    while start < size:
        vector = min(lanes, 1 << ((size - start).bit_length() - 1))
        statements.append(_vector(loop, iteration, start, vector))
        start += vector
    return statements


def _vector(loop: Any, iteration: Any, start: int, size: int) -> Any:
    """One iteration of the inner loop's elements from `start` on, at once."""
    from felixlike import tvmlib
    from felixlike.tvmlib import tirx

    inner = loop.body
    lane = tirx.Var(inner.loop_var.name, str(inner.loop_var.ty.dtype))
    place = lane + _like(lane, start) if size > 1 else _like(lane, start)
    body = tvmlib.substituted(inner.body, {loop.loop_var: iteration, inner.loop_var: place})
    return tirx.For(lane, _like(lane, 0), _like(lane, size), tirx.ForKind.VECTORIZED, body) if size > 1 else body


def _like(variable: Any, value: int) -> Any:
    from felixlike.tvmlib import tirx

    return tirx.const(value, str(variable.ty.dtype))
