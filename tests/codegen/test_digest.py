"""The same code has the same digest."""

from __future__ import annotations

import workloads

from felixlike import codegen
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches


def test_the_same_kernel_compiled_again_has_the_same_digest() -> None:
    target = resolve_target("cpu")
    sketch = sketches(workloads.matmul(), target, space="own")[0]
    first, second = sketch.sample(2, seed=0).tolist()

    def digest(point: list[int]) -> str:
        return codegen.code_digest(codegen.compile_primfuncs(sketch.schedule(point).mod, target))

    assert digest(first) == digest(first)  # though LLVM names vectors in memory by where they happen to lie
    assert digest(first) != digest(second)
