"""VerifyGPUCode: what a kernel may ask of a GPU, as constraints.

    lowest ≤ Π threadIdx extents ≤ max_threads_per_block
    Σ bytes of shared buffers · pipeline stages ≤ max_shared_memory_per_block
    steps of a software pipeline ≥ 2

A pipeline of one step holds the initial store too, which its notes do not foresee. `lowest` is a warp where the tiled block has more than 64 outputs (MultiLevelTiling notes it). Registers, hence local
buffers, are not limited: TVM leaves them to nvcc. Nor are virtual threads, whatever the pass's max_vthread says: they
are unrolled before it looks. Follows TVM's verify_gpu_code.cc.
"""

from __future__ import annotations

from typing import Any

from felixlike.symbolic.constraints import Constraint
from felixlike.symbolic.expression import Expr, add, const, expand, mul
from felixlike.symbolic.program import PIPELINE, Loop, Program

def gpu_constraints(program: Program, target: Any, lowest: int, stages: int) -> tuple[Constraint, ...]:
    """formula ≤ 0 for each limit; once for every kernel, that is for every nest.

    lowest: fewest threads of a block.  stages: copies of shared buffers."""
    threads, shared = int(target.attrs["max_threads_per_block"]), int(target.attrs["max_shared_memory_per_block"])
    found: dict[Expr, str] = {}
    for _, path in program.stores():
        own = _extent(path, "threadIdx.x")
        found[own - threads] = f"a block has at most {threads} threads"
        if lowest > 1:
            found[lowest - own] = f"a block has at least {lowest} threads, a warp"
        if any(loop.thread == PIPELINE for loop in path):
            found[2 - _extent(path, PIPELINE)] = "a software pipeline has at least two steps"
    lying = [mul(b.shape) * b.item_bytes * stages for b in program.buffers if b.scope == "shared"]
    if lying:
        found[expand(add(lying)) - shared] = f"shared memory of a block is {shared} bytes"
    return tuple(Constraint(f, reason) for f, reason in found.items() if f.high > 0)


def _extent(path: tuple[Loop, ...], thread: str) -> Expr:
    bound = [loop.extent for loop in path if loop.thread == thread]
    return mul(bound) if bound else const(1)
