"""Compute the GPU thread features: blocks, virtual threads, threads, memory of blocks and threads, and thread strides.

    shared_bytes = Σ bytes of shared buffers · stages of the software pipeline
    local_bytes = Σ bytes of a thread's local buffers, which are registers unless there are too many

On CPUs the counts are 1, and the bytes and the stride are 0. The counts follow TVM's per_store_feature.cc (group 1).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.expression import Expr, add, const, mul
from felixlike.symbolic.program import Buffer, Loop
from felixlike.symbolic.replay.postprocessors import extent_of, shared_bytes, threads_of

_THREAD = "threadIdx.x"
_BOUND = {"block_extent": "blockIdx.x", "vthread_extent": "vthread.x"}


def threads(view: StoreView) -> dict[str, Expr]:
    """Return the extents of the thread bindings, and the bytes of shared and local memory."""
    counts = {name: extent_of(view.path, thread) for name, thread in _BOUND.items()}
    counts["thread_extent"] = threads_of(view.path)
    local_bytes = add(b.most * b.item_bytes for b in view.program.buffers if b.scope == "local")
    return {**counts, "shared_bytes": shared_bytes(view.program), "local_bytes": local_bytes}


def thread_stride(view: StoreView, buffer: Buffer) -> Expr:
    """Return the elements between the accesses of one thread and the next.

    The stride tells whether a warp's accesses fall into the same cache lines, or into the same bank of shared memory.
    It is 0 if neighbouring threads touch the same elements, and without threads.
    """
    stride: Expr = const(0)
    for level, loop in enumerate(view.loops):
        steps = _steps_between_threads(loop)
        if steps is not None:
            step = view.stride(buffer, level)
            stride_at_level = const(0) if step is None else step * steps
            stride = select(at_least(view.extents[level], 2), stride_at_level, stride)
    return stride


def _steps_between_threads(loop: Loop) -> Expr | None:
    """Return the loop iterations between one thread and the next; None if the loop is not run by several threads.

    In a predicated split, each thread has one vector.
    """
    if loop.share is None:
        return const(1) if loop.thread == _THREAD else None
    if not loop.share.among(_THREAD):
        return None
    kinds = [kind for kind, _ in loop.share.parts]
    return mul([const(1), *(extent for _, extent in loop.share.parts[kinds.index(_THREAD) + 1 :])])
