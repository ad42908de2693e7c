"""VerifyGPUCode: what a kernel may ask of a GPU, as constraints.

    lowest ≤ Π threadIdx extents ≤ max_threads_per_block
    Σ bytes of shared buffers · pipeline stages ≤ max_shared_memory_per_block
    steps of a software pipeline ≥ 2
    4 bytes · lanes of a vector whose elements lie apart ≤ 16

The last is about the vector of their indices; it matters for elements of less than 4 bytes only. They lie apart where
vectors do not divide the innermost of the loops that are copied. TVM's pass sees that only where that loop has one
iteration; of other such vectors it generates wrong code: eight bytes are put together by shifts of 32-bit numbers.
`lowest` is a warp where a tiled block has more than 64 outputs (MultiLevelTiling notes it). A pipeline of one step
would hold the initial store too, which its notes do not foresee. Registers, hence local buffers, are not limited: TVM
leaves them to nvcc. Nor are virtual threads, whatever the pass's max_vthread says: they are unrolled before it looks.
Follows TVM's verify_gpu_code.cc.
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
    """formula ≤ 0 for each limit; once for every nest.

    lowest: fewest threads of a block, for stores that have such a note."""
    threads, shared = int(target.attrs["max_threads_per_block"]), int(target.attrs["max_shared_memory_per_block"])
    found: dict[Expr, str] = {}
    for store, path in program.stores():
        own = threads_of(path)
        found[own - threads] = f"a block has at most {threads} threads"
        found[lowest.get(store.block, 1) - own] = "a block has at least as many threads as a warp"
        found[_apart(store, path)] = "a vector of elements that lie apart has at most 4 of them"
        if any(loop.thread == PIPELINE for loop in path):
            found[2 - extent_of(path, PIPELINE)] = "a software pipeline has at least two steps"
    found[expand(shared_bytes(program)) - shared] = f"shared memory of a block is {shared} bytes"
    return tuple(Constraint(f, reason) for f, reason in found.items() if f.high > 0)


def _apart(store: Store, path: tuple[Loop, ...]) -> Expr:
    """1 where a copy by vectors gathers more elements than a vector of indices may have, else 0."""
    lanes = [extent for loop in path if loop.share is not None for kind, extent in loop.share.parts if kind == "vector"]
    moving = [loop.extent for loop in path if loop.share is not None and not loop.extent.is_const]
    if not lanes or not moving or store.target.buffer.item_bytes >= 4:
        return const(0)
    whole = equals(moving[-1], floordiv(moving[-1], lanes[-1]) * lanes[-1])
    return at_least(lanes[-1], _MOST_INDICES + 1) * (1 - whole)


_MOST_INDICES = 4
"""Indices of 4 bytes in the largest vector (max_vector_bytes of verify_gpu_code.cc)."""


def shared_bytes(program: Program) -> Expr:
    """Bytes of shared memory of a block, stages of a software pipeline included.

    Of buffers that are accessed in groups, as if TVM never found where groups begin unless tiles are made of groups or
    lie within one."""
    return add(b.most * b.item_bytes for b in program.buffers if b.scope == "shared") * program.stages


def extent_of(path: tuple[Loop, ...], thread: str) -> Expr:
    """How many of these threads run a nest: the product of the loops bound to them, else the share's part."""
    bound = [loop.extent for loop in path if loop.thread == thread and loop.share is None]
    if bound:
        return mul(bound)
    shares = dict.fromkeys(loop.share for loop in path if loop.share is not None)
    return mul([const(1), *(extent for share in shares for kind, extent in share.parts if kind == thread)])


def threads_of(path: tuple[Loop, ...]) -> Expr:
    """Threads of a block that runs a nest, of both dimensions."""
    return extent_of(path, "threadIdx.x") * extent_of(path, "threadIdx.y")
