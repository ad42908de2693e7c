"""Threads of a GPU: blocks, virtual threads and threads of a store's nest, a block's and a thread's memory, and how far
apart neighbouring threads are.

    shared_bytes = Σ bytes of shared buffers · stages of the software pipeline
    local_bytes = Σ bytes of buffers of a thread's own, which are registers unless there are too many

On CPUs the counts are 1, there is no such memory and no neighbour. The counts follow TVM's per_store_feature.cc
(group 1).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.expression import Expr, add, const, mul
from felixlike.symbolic.program import Buffer, Loop
from felixlike.symbolic.replay.postprocessors import extent_of, shared_bytes, threads_of

_THREAD = "threadIdx.x"
_BOUND = {"block_extent": "blockIdx.x", "vthread_extent": "vthread.x"}


def threads(view: StoreView) -> dict[str, Expr]:
    """Extents of the bindings, and bytes."""
    counts = {name: extent_of(view.path, thread) for name, thread in _BOUND.items()}
    counts["thread_extent"] = threads_of(view.path)
    own = add(b.most * b.item_bytes for b in view.program.buffers if b.scope == "local")
    return {**counts, "shared_bytes": shared_bytes(view.program), "local_bytes": own}


def thread_stride(view: StoreView, buffer: Buffer) -> Expr:
    """Elements between what one thread and the next touch: whether a warp's accesses fall into the same cache lines, or
    into the same bank of shared memory. 0 where they touch the same ones, and without threads."""
    stride: Expr = const(0)
    for level, loop in enumerate(view.loops):
        apart = _apart(loop)
        if apart is not None:
            step = view.stride(buffer, level)
            here = const(0) if step is None else step * apart
            stride = select(at_least(view.extents[level], 2), here, stride)
    return stride


def _apart(loop: Loop) -> Expr | None:
    """Steps of a loop between one thread and the next; None where it is not run by several threads. Of loops that are
    shared out, each thread has a vector."""
    if loop.share is None:
        return const(1) if loop.thread == _THREAD else None
    if not loop.share.among(_THREAD):
        return None
    kinds = [kind for kind, _ in loop.share.parts]
    return mul([const(1), *(extent for _, extent in loop.share.parts[kinds.index(_THREAD) + 1 :])])
