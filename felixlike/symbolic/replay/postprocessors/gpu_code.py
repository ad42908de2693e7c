"""Model VerifyGPUCode: a GPU's limits for a kernel, as constraints.

    lowest ≤ Π threadIdx extents ≤ max_threads_per_block
    Σ bytes of shared buffers · pipeline stages ≤ max_shared_memory_per_block
    steps of a software pipeline ≥ 2
    4 bytes · lanes of a vector whose elements are not contiguous ≤ 16

The last limit is about the vector of the elements' indices, and only matters for elements of less than 4 bytes.
Elements are not contiguous if vectors do not divide the innermost of the copied loops. TVM's pass detects this only if
that loop has one iteration. For other such vectors TVM generates wrong code: it combines eight bytes by shifts of
32-bit numbers. `lowest` is a warp if a tiled block has more than 64 outputs (MultiLevelTiling annotates it). A pipeline
of one step would contain the initial store too, which its annotations do not allow for. Registers, and therefore local
buffers, are not limited: TVM leaves them to nvcc. Virtual threads are not limited either, despite the pass's
max_vthread: they are unrolled before it. Follows TVM's verify_gpu_code.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from felixlike.symbolic.expr.comparison import at_least, equals
from felixlike.symbolic.expr.expression import Expr, add, const, floordiv, mul
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.program import PIPELINE, Loop, Program, Store
from felixlike.symbolic.program.constraints import Constraint


def gpu_constraints(program: Program, target: Any, lowest: Mapping[str, int]) -> tuple[Constraint, ...]:
    """Return a constraint for each limit and nest.

    Args:
        program: The program.
        target: The TVM target.
        lowest: The minimum number of threads per block, for stores with such an annotation.
    """
    threads, shared = int(target.attrs["max_threads_per_block"]), int(target.attrs["max_shared_memory_per_block"])
    reasons: dict[Expr, str] = {}
    for store, path in program.stores():
        block_threads = threads_of(path)
        reasons[block_threads - threads] = f"a block has at most {threads} threads"
        reasons[lowest.get(store.block, 1) - block_threads] = "a block has at least as many threads as a warp"
        reasons[_gathers_too_many(store, path)] = (
            f"a vector of elements that are not contiguous has at most {_MOST_INDICES} elements"
        )
        if any(loop.thread == PIPELINE for loop in path):
            reasons[2 - extent_of(path, PIPELINE)] = "a software pipeline has at least two steps"
    reasons[expand(shared_bytes(program)) - shared] = f"a block uses at most {shared} bytes of shared memory"
    return tuple(Constraint(f, reason) for f, reason in reasons.items() if f.high > 0)


def _gathers_too_many(store: Store, path: tuple[Loop, ...]) -> Expr:
    """Return 1 if a vectorised copy gathers more elements than a vector of indices may have, else 0."""
    lanes = [extent for loop in path if loop.share is not None for kind, extent in loop.share.parts if kind == "vector"]
    symbolic_extents = [loop.extent for loop in path if loop.share is not None and not loop.extent.is_const]
    if not lanes or not symbolic_extents or store.target.buffer.item_bytes >= 4:
        return const(0)
    divides = equals(symbolic_extents[-1], floordiv(symbolic_extents[-1], lanes[-1]) * lanes[-1])
    return at_least(lanes[-1], _MOST_INDICES + 1) * (1 - divides)


_MOST_INDICES = 4
"""Number of 4-byte indices in the largest vector (max_vector_bytes of verify_gpu_code.cc)."""


def shared_bytes(program: Program) -> Expr:
    """Return the bytes of shared memory of a block, stages of a software pipeline included.

    For buffers accessed in groups, TVM is assumed to find the beginnings of groups only if tiles consist of whole
    groups or lie within one.
    """
    return add(b.most * b.item_bytes for b in program.buffers if b.scope == "shared") * program.stages


def extent_of(path: tuple[Loop, ...], thread: str) -> Expr:
    """Return how many threads of a kind run a nest: the product of the loops bound to it, else the part of a split."""
    bound = [loop.extent for loop in path if loop.thread == thread and loop.share is None]
    if bound:
        return mul(bound)
    shares = dict.fromkeys(loop.share for loop in path if loop.share is not None)
    return mul([const(1), *(extent for share in shares for kind, extent in share.parts if kind == thread)])


def threads_of(path: tuple[Loop, ...]) -> Expr:
    """Return the threads per block of a nest, in both dimensions."""
    return extent_of(path, "threadIdx.x") * extent_of(path, "threadIdx.y")
