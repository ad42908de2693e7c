"""Threads of a GPU: blocks, virtual threads and threads of a store's nest, and the shared memory of a block.

    shared_bytes = Σ bytes of shared buffers · stages of the software pipeline

On CPUs the counts are 1 and there is no shared memory. The counts follow TVM's per_store_feature.cc (group 1).
"""

from felixlike.algebra.expression import Expr
from felixlike.features.view import StoreView
from felixlike.symbolic.replay.postprocessors import extent_of, shared_bytes

_BOUND = {"block_extent": "blockIdx.x", "vthread_extent": "vthread.x", "thread_extent": "threadIdx.x"}


def threads(view: StoreView) -> dict[str, Expr]:
    """Extents of the bindings, and bytes."""
    counts = {name: extent_of(view.path, thread) for name, thread in _BOUND.items()}
    return {**counts, "shared_bytes": shared_bytes(view.program)}
