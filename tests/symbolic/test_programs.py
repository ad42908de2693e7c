"""Symbolic programs equal their golden texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import workloads

from felixlike import _tvm
from felixlike.symbolic import sketches

TARGET = _tvm.Target({"kind": "llvm", "num-cores": 2})
"""A fixed target, because limits on parallel extents depend on the number of cores, and golden texts must not."""

CASES: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "matmul_relu_plain": ("matmul_relu", 0, ()),
    "matmul_relu_fused": ("matmul_relu", 1, ()),
    "matmul_cache_write": ("matmul", 0, ()),
    "conv2d_pad_at_root": ("conv2d", 0, (-1,)),
    "conv2d_pad_in_tiles": ("conv2d", 1, (7,)),
    "conv2d_pad_inlined": ("conv2d", 2, (-2,)),
    "softmax": ("softmax", 8, (-1, -1, -1)),
    "softmax_rfactor": ("softmax", 0, (0, 0, -1, 0, 0)),
    "row_sum_rfactor": ("row_sum", 1, ()),
    "chain": ("chain", 0, ()),
    "max_pool_rfactor": ("max_pool", 0, (-1,)),
    "gather": ("gather", 0, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_program(case: str, golden: Callable[[str, str], None]) -> None:
    name, index, locations = CASES[case]
    sketch = sketches(workloads.ALL[name](), TARGET)[index]
    golden(f"programs/{case}", str(sketch.structure(locations).program))
