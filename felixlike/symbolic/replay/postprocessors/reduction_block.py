"""Model RewriteReductionBlock: a reduction's initial store moves out of its loops.

    for i in 64:                             for i in 64:
        for k in t0:            →                B[i] = 0
            B[i] ⊕= A[i, k]                      for k in t0:
                                                     B[i] += A[i, k]

Constant stores are not counted as work, so features depend only on the position of the initial store: before the
outermost loop that is not data-parallel, which keeps the buffer alive outside that loop. Follows TVM's
rewrite_reduction_block.cc. A trace may decompose reductions itself, at other loops.
"""

from felixlike.symbolic.program import Loop, Store, data_parallel


def initial_path(store: Store, path: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops around the initial store of a reduction; `path` for other stores."""
    if not store.is_reduction:
        return path
    if (around := store.initial) is not None:
        return tuple(loop for loop in path if loop.variable in around)
    for depth, loop in enumerate(path):
        if not data_parallel(loop):
            return path[:depth]
    return path
