"""Equal code has equal digests."""

from __future__ import annotations

import workloads

from felixlike import codegen
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches


def test_recompiled_kernels_have_equal_digests() -> None:
    target = resolve_target("cpu")
    sketch = sketches(workloads.matmul(), target, space="own")[0]
    first, second = sketch.sample(2, seed=0).tolist()

    def digest(point: list[int]) -> str:
        return codegen.code_digest(codegen.compile_primfuncs(sketch.schedule(point).mod, target))

    assert digest(first) == digest(first)  # although LLVM names vectors in memory by their address
    assert digest(first) != digest(second)
