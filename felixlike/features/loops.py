"""Kinds of loops: extents of the parallel and vector loops, unrolled steps, loops around the store.

    extent of a kind = Π over loops of select(loop is of that kind, its extent, 1)

A nest that is fused whole has the vector width and the rest instead; loops that are shared out have the share's parts.
What tensor cores do at once counts as a vector. Loops of extent 1 vanish, unless the unroll note is on them. Follows
TVM's per_store_feature.cc (groups 1 and 5).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.expression import Expr, add, ceildiv, const, mul
from felixlike.symbolic.program import PIPELINE, WITHIN_BLOCK
from felixlike.symbolic.replay.postprocessors import extent_of


def loops(view: StoreView) -> dict[str, Expr]:
    """Extents of the fused loops, flags where there are none, unrolled steps, and the number of loops."""
    shares = dict.fromkeys(loop.share for loop in view.loops if loop.share is not None)
    parts = [part for share in shares for part in share.parts]
    vector = mul(
        [
            *(select(loop.vector, loop.extent, 1) for loop in view.loops),
            *(extent for kind, extent in parts if kind == "vector"),
        ]
    )
    parallel = mul(select(loop.parallel, loop.extent, 1) for loop in view.loops)
    blanket = view.program.blankets.get(view.store)
    if blanket is not None:
        vector = select(blanket.gate, blanket.width, vector)
        parallel = select(blanket.gate, ceildiv(blanket.total, blanket.width), parallel)
    wide, spread = at_least(vector, 2), at_least(parallel, 2)
    apart = const(1) if blanket is None else 1 - blanket.gate
    serial = add(
        at_least(loop.extent, 2) * (1 - loop.vector) * (1 - loop.parallel) * apart
        for loop in view.loops
        if loop.share is None and not loop.thread
    )
    serial = serial + add(at_least(extent, 2) for kind, extent in parts if kind == "serial")
    bound = add(at_least(extent_of(view.path, thread), 2) for thread in ("blockIdx.x", *WITHIN_BLOCK))
    bound = bound + at_least(extent_of(view.path, PIPELINE), 2)
    noted = view.path[0].unroll if view.path else const(0)
    unrolled = [loop.extent for loop in view.loops if loop.kind == "unrolled"]
    unroll = noted + mul(unrolled) if unrolled else noted
    return {
        "vector_extent": vector * view.store.at_once,
        "vector_none": 1 - wide if view.store.at_once == 1 else const(0),
        "parallel_extent": parallel,
        "parallel_none": 1 - spread,
        "unroll_steps": unroll,
        "iterations": view.iterations,
        "loops": serial + bound + wide + spread + _kept_by_note(view, noted, spread),
    }


def _kept_by_note(view: StoreView, unroll: Expr, spread: Expr) -> Expr:
    """1 where the outermost loop has extent 1 and stays because of its note."""
    if not view.path:
        return const(0)
    outermost = view.path[0]
    return at_least(unroll, 1) * (1 - at_least(outermost.extent, 2)) * (1 - outermost.parallel * spread)
