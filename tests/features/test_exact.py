"""Formulas equal brute-force counts over every iteration of small programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from support import oracles

from felixlike.features import NAMES, formulas
from felixlike.symbolic import sketches

SMALL: dict[str, Callable[[], Any]] = {
    "matmul": lambda: workloads.matmul(12, 10, 18),
    "matmul_relu": lambda: workloads.matmul(8, 9, 20, relu=True),
    "matmul_prime": lambda: workloads.matmul(7, 5, 13, relu=True),
    "conv2d": lambda: workloads.conv2d(4, 8, 6),
    "conv2d_strided": lambda: workloads.conv2d(4, 9, 6, stride=2),
    "conv2d_1x1": lambda: workloads.conv2d(6, 6, 8, kernel=1, padding=0),
    "conv2d_grouped": workloads.ALL["conv2d_grouped"],
    "conv2d_transposed": workloads.ALL["conv2d_transposed"],
    "conv2d_by_phases": lambda: workloads.by_phases(2, 3, 2),
    "depthwise": lambda: workloads.depthwise(6, 8),
    "softmax": lambda: workloads.softmax(6, 12),
    "row_sum": lambda: workloads.row_sum(6, 24),
    "max_pool": lambda: workloads.max_pool(4, 8),
    "chain": lambda: workloads.chain(6, 10),
    **{name: workloads.ALL[name] for name in ("gather", "sum_all", "merge_heads", "split_heads", "patches")},
}


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", SMALL)
def test_formulas_equal_brute_force_counts(name: str, target: str) -> None:
    checked = 0
    for sketch in sketches(SMALL[name](), target):
        if not sketch.is_symbolic:
            continue
        features_of_sketch = formulas(sketch, oracles.SMALL_CACHES)
        points = sketch.sample(4 if target == "cpu" and name not in workloads.SLOW else 3, seed=11)
        values = features_of_sketch.evaluate(points)
        for point, rows in zip(points.tolist(), values, strict=True):
            counted = oracles.count(sketch, tuple(point), oracles.SMALL_CACHES)
            for block, columns in counted.items():
                row = rows[features_of_sketch.stores.index(block)]
                for column, value in columns.items():
                    ours = row[NAMES.index(column)]
                    assert np.isclose(ours, value, rtol=1e-9), (sketch.index, point, block, column, ours, value)
                    checked += 1
    assert checked > 50
