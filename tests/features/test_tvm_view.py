"""Formulas equal TVM's extracted features where the definitions agree, and programs the loops that it lowers."""

from __future__ import annotations

import numpy as np
import pytest
import workloads
from support import oracles
from support.operators import OPERATORS
from support.tvm_view import Cause, explained_view, tvm_view
from support.tvm_view.intensity import intensity
from support.tvm_view.written import Written, bounds, coefficient, from_tvm

from felixlike import _tvm
from felixlike.errors import UnsupportedSketch
from felixlike.features import formulas
from felixlike.symbolic import Sketch, concrete_nest, sketches
from felixlike.symbolic.replay.primitives.location import INLINE

_CONDITIONS = range(7, 15)
"""Entries that are unknown for stores with conditions."""


def _compare(sketch: Sketch, count: int, paths: int = 8, *, nests: bool = False) -> tuple[int, int]:
    """Return (TVM's non-zero entries, how many of them are unknown here); fail if a known entry differs.

    With `nests`, TVM must also lower each point to the loops of the symbolic program.
    """
    points = sketch.sample(count, seed=5, paths=paths)
    meaningful = unknown = 0
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        schedule = sketch.schedule(point)
        if nests:
            program = sketch.structure([point[column] for column in sketch.location_columns]).program
            values = dict(zip([variable.name for variable in sketch.variables], point, strict=True))
            assert concrete_nest(program, values) == oracles.tvm_nest(schedule), (sketch.index, point)
        theirs = oracles.tvm_features(sketch, schedule)
        assert ours.shape == theirs.shape, (sketch.index, point)
        known = ~np.isnan(ours)
        wrong = known & ~np.isclose(ours, theirs, rtol=1e-6, atol=1e-9)
        assert not wrong.any(), (sketch.index, point, np.argwhere(wrong).tolist())
        meaningful += int((theirs != 0).sum())
        unknown += int(((theirs != 0) & ~known).sum())
    return meaningful, unknown


@pytest.mark.parametrize("name", workloads.ALL)
def test_views_and_loop_nests_equal_tvms(name: str) -> None:
    """At random valid points, which TVM accepts unchanged."""
    count, paths = (8, 4) if name in workloads.SLOW else (10, 8)
    all_sketches = sketches(workloads.ALL[name]())
    counts = [_compare(sketch, count, paths, nests=True) for sketch in all_sketches if sketch.is_symbolic]
    assert sum(unknown for _, unknown in counts) <= 0.25 * sum(meaningful for meaningful, _ in counts)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", ["gather", "gather_repeated", "merge_heads", "split_heads", "patches", "concat"])
def test_every_entry_of_lookups_and_reshapes_is_known(name: str, target: str) -> None:
    for small in (False, True):
        counts = [_compare(sketch, 4) for sketch in sketches(OPERATORS[name](small_size=small), target)]
        assert all(unknown == 0 for _, unknown in counts)


@pytest.mark.parametrize("name", ["matmul", "conv2d_strided", "depthwise", "broadcast_chain", "transpose"])
def test_view_equals_the_extractor_on_gpus(name: str) -> None:
    counts = [_compare(sketch, 4) for sketch in sketches(OPERATORS[name](small_size=True), "sm_90")]
    assert sum(unknown for _, unknown in counts) <= 0.25 * sum(meaningful for meaningful, _ in counts)


def test_every_entry_is_known_without_conditions() -> None:
    sketch = sketches(workloads.matmul())[0]
    assert _compare(sketch, 2)[1] == 0


def test_unknown_entries_have_causes() -> None:
    """For a depthwise convolution with inlined padding, the counters that include its conditions are unknown."""
    sketch = sketches(workloads.depthwise())[2]
    points = sketch.sample(40, seed=0, paths=20)
    inlined = points[points[:, sketch.location_columns[0]] == INLINE]
    (view,) = explained_view(formulas(sketch), inlined[:1])
    assert np.flatnonzero(np.isnan(view.values).any(axis=0)).tolist() == list(_CONDITIONS)
    assert set(view.causes.values()) == {Cause.CONDITIONS}


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "sum_all", "sum_rows"])
def test_every_entry_of_reductions_across_threads_is_known(name: str) -> None:
    for small in (False, True):
        counts = [_compare(sketch, 6) for sketch in sketches(OPERATORS[name](small_size=small), "sm_90")]
        assert all(unknown == 0 for _, unknown in counts)


@pytest.mark.parametrize(
    ("name", "index", "point", "rows"),
    [
        ("global_pool", 1, (4, 16), 3),  # thirteen elements per thread: sum of a thread, sum of all, mean
        ("global_pool", 1, (64, 16), 2),  # 7 · 7 elements; TVM sees no reduction since 7 does not divide 64
        ("softmax", 3, (256, 16, 16), 5),  # guards; maximum and sum of a thread, those of all, result
        ("softmax", 3, (128, 16, 16), 3),  # one element per thread
    ],
)
def test_number_of_rows_of_reductions_across_threads(name: str, index: int, point: tuple[int, ...], rows: int) -> None:
    sketch = sketches(OPERATORS[name](), "sm_90")[index]
    (ours,) = tvm_view(formulas(sketch), np.array([point]))
    theirs = oracles.tvm_features(sketch, sketch.schedule(point))
    assert len(ours) == len(theirs) == rows
    known = ~np.isnan(ours)
    np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=1e-9)


def _index(text: str) -> Written:
    """Return an index over loops i and j."""
    i, j = (_tvm.tirx.Var(name, "int64") for name in "ij")
    return from_tvm(eval(text, {"i": i, "j": j, "mod": _tvm.tirx.floormod, "div": _tvm.tirx.floordiv}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i * 4 + j", (0, 15)),
        ("i * 4 - j", (-3, 12)),
        ("div(i, 2) * 8 + 3", (3, 11)),
        ("mod(i + 3, 2) + j", (1, 4)),  # a remainder keeps the value of the first iteration
    ],
)
def test_bounds_equal_tvms(text: str, expected: tuple[int, int]) -> None:
    assert bounds(_index(text), {"i": 4, "j": 4}) == expected


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [("i * 64 + j * 4", 4, 4), ("i * 64 + j", 64, 1), ("i + j * 4", 4, 4), ("i + j", 1, 1), ("mod(i, 8) * 3", 3, 0)],
)
def test_coefficients_equal_tvms(text: str, first: int, second: int) -> None:
    index = _index(text)
    assert (coefficient(index, "i"), coefficient(index, "j")) == (first, second)


def test_indices_with_calls_are_refused() -> None:
    call = _tvm.tirx.call_pure_extern("int64", "f")
    with pytest.raises(UnsupportedSketch, match="Call") as caught:
        from_tvm(call)
    assert caught.value.where == str(call)


def test_intensity_is_linear_between_loops() -> None:
    curve = np.exp2(intensity(2, [4, 5], [40, 10])) - 1
    assert curve[:2] == pytest.approx([1.0, 1.0])  # the inner loop does 10 operations on 10 bytes, a quarter of all
    assert curve[-1] == pytest.approx(1.0)
    assert np.exp2(intensity(2, [4, 5], [20, 10])[4]) - 1 == pytest.approx(1 + (20 - 10) / (40 - 10))
    assert intensity(0, [4, 5], [40, 10]) == [0.0] * 10
