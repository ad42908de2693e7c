"""Compute the loop features: extents of the parallel and vector loops, unrolled steps, and loops around the store.

    extent of a kind = Π over loops of select(loop is of that kind, its extent, 1)

A fully fused nest contributes its vector width and the remaining extent instead. Loops with a predicated split
contribute the parts of the split. The executions that tensor cores do at once count as a vector. Loops of extent 1 are
omitted, unless they carry the unroll annotation. The features follow TVM's per_store_feature.cc (groups 1 and 5).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.expression import Expr, add, ceildiv, const, mul
from felixlike.symbolic.program import PIPELINE, WITHIN_BLOCK
from felixlike.symbolic.replay.postprocessors import extent_of


def loops(view: StoreView) -> dict[str, Expr]:
    """Return the extents of the fused loops, flags where they are missing, unrolled steps, and the number of loops."""
    shares = dict.fromkeys(loop.share for loop in view.loops if loop.share is not None)
    parts = [part for share in shares for part in share.parts]
    vector = mul(
        [
            *(select(loop.vector, loop.extent, 1) for loop in view.loops),
            *(extent for kind, extent in parts if kind == "vector"),
        ]
    )
    parallel = mul(select(loop.parallel, loop.extent, 1) for loop in view.loops)
    fused_nest = view.program.blankets.get(view.store)
    if fused_nest is not None:
        vector = select(fused_nest.gate, fused_nest.width, vector)
        parallel = select(fused_nest.gate, ceildiv(fused_nest.total, fused_nest.width), parallel)
    is_vectorized, is_parallel = at_least(vector, 2), at_least(parallel, 2)
    not_fused = const(1) if fused_nest is None else 1 - fused_nest.gate
    serial = add(
        at_least(loop.extent, 2) * (1 - loop.vector) * (1 - loop.parallel) * not_fused
        for loop in view.loops
        if loop.share is None and not loop.thread
    )
    serial = serial + add(at_least(extent, 2) for kind, extent in parts if kind == "serial")
    bound_loops = add(at_least(extent_of(view.path, thread), 2) for thread in ("blockIdx.x", *WITHIN_BLOCK))
    bound_loops = bound_loops + at_least(extent_of(view.path, PIPELINE), 2)
    unroll_annotation = view.path[0].unroll if view.path else const(0)
    unrolled = [loop.extent for loop in view.loops if loop.kind == "unrolled"]
    unroll = unroll_annotation + mul(unrolled) if unrolled else unroll_annotation
    return {
        "vector_extent": vector * view.store.at_once,
        "vector_none": 1 - is_vectorized if view.store.at_once == 1 else const(0),
        "parallel_extent": parallel,
        "parallel_none": 1 - is_parallel,
        "unroll_steps": unroll,
        "iterations": view.iterations,
        "loops": serial
        + bound_loops
        + is_vectorized
        + is_parallel
        + _kept_by_note(view, unroll_annotation, is_parallel),
    }


def _kept_by_note(view: StoreView, unroll: Expr, is_parallel: Expr) -> Expr:
    """Return 1 if the outermost loop has extent 1 and its unroll annotation keeps it, else 0."""
    if not view.path:
        return const(0)
    outermost = view.path[0]
    return at_least(unroll, 1) * (1 - at_least(outermost.extent, 2)) * (1 - outermost.parallel * is_parallel)
