"""The formulas against TVM's own extractor, where the definitions agree."""

from __future__ import annotations

import numpy as np
import pytest
import workloads

from benchmarks import oracles
from benchmarks.operators import OPERATORS
from felixlike.features import formulas, tvm_view
from felixlike.symbolic import Sketch, sketches

_CONDITIONS = range(7, 15)
"""Entries that are unknown for stores with conditions."""


def _compare(sketch: Sketch, count: int) -> tuple[int, int]:
    """(TVM's non-zero entries, those of them that we leave out); fails where a known entry differs."""
    points = sketch.sample(count, seed=5)
    meaningful = unknown = 0
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        theirs = oracles.tvm_features(sketch, sketch.schedule(point))
        assert ours.shape == theirs.shape, (sketch.index, point)
        known = ~np.isnan(ours)
        wrong = known & ~np.isclose(ours, theirs, rtol=1e-6, atol=1e-9)
        assert not wrong.any(), (sketch.index, point, np.argwhere(wrong).tolist())
        meaningful += int((theirs != 0).sum())
        unknown += int(((theirs != 0) & ~known).sum())
    return meaningful, unknown


@pytest.mark.parametrize("name", workloads.ALL)
def test_view_equals_the_extractor(name: str) -> None:
    found = [_compare(sketch, 8) for sketch in sketches(workloads.ALL[name]()) if sketch.understood]
    assert sum(unknown for _, unknown in found) <= 0.25 * sum(meaningful for meaningful, _ in found)


@pytest.mark.parametrize("name", ["matmul", "conv2d_strided", "depthwise", "broadcast_chain", "transpose"])
def test_view_equals_the_extractor_on_gpus(name: str) -> None:
    found = [_compare(sketch, 4) for sketch in sketches(OPERATORS[name](small_size=True), "sm_90")]
    assert sum(unknown for _, unknown in found) <= 0.25 * sum(meaningful for meaningful, _ in found)


def test_every_entry_is_known_without_conditions() -> None:
    sketch = sketches(workloads.matmul())[0]
    assert _compare(sketch, 2)[1] == 0


def test_unknown_entries_are_the_documented_ones() -> None:
    sketch = sketches(workloads.depthwise())[2]
    (view,) = tvm_view(formulas(sketch), sketch.sample(1, seed=0))
    unknown = np.flatnonzero(np.isnan(view).any(axis=0)).tolist()
    assert unknown == list(_CONDITIONS)
