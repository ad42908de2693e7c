"""The formulas against TVM's own extractor, where the definitions agree."""

from __future__ import annotations

import numpy as np
import pytest
import workloads

from benchmarks import oracles
from felixlike.features import formulas, tvm_view
from felixlike.symbolic import sketches

_COMPARED = [*range(7), *range(15, 57), *range(157, 164)]


@pytest.mark.parametrize("name", workloads.ALL)
def test_view_equals_the_extractor(name: str) -> None:
    compared = 0
    for sketch in sketches(workloads.ALL[name]()):
        if not sketch.understood:
            continue
        points = sketch.sample(8, seed=5)
        for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
            theirs = oracles.tvm_features(sketch, sketch.schedule(point))
            assert ours.shape == theirs.shape, (sketch.index, point)
            known = ~np.isnan(ours)
            wrong = known & ~np.isclose(ours, theirs, rtol=1e-6, atol=1e-9)
            assert not wrong.any(), (sketch.index, point, np.argwhere(wrong).tolist())
            compared += int(known.sum())
    assert compared > 0


def test_unknown_entries_are_the_documented_ones() -> None:
    sketch = sketches(workloads.matmul())[0]
    (view,) = tvm_view(formulas(sketch), sketch.sample(1, seed=0))
    known = np.flatnonzero(~np.isnan(view).any(axis=0)).tolist()
    assert known == _COMPARED
