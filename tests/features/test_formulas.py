"""The interface of formulas: names, shapes, locations, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import workloads

from felixlike.errors import InvalidOption, InvalidPoint, UnsupportedSketch
from felixlike.features import COLUMNS, NAMES, Formulas, formulas
from felixlike.symbolic import sketches


@pytest.fixture(scope="module")
def conv() -> Formulas:
    return formulas(sketches(workloads.conv2d())[0])


def test_every_column_has_a_name_and_a_unit() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(COLUMNS)
    assert {c.unit for c in COLUMNS} == {"count", "bytes", "elements", "flag"}
    assert all(c.meaning for c in COLUMNS)


def test_values_are_finite_and_not_negative(conv: Formulas) -> None:
    points = conv.sketch.sample(20, seed=1)
    values = conv.evaluate(points)
    assert values.shape == (20, len(conv.stores), len(conv.names))
    assert np.isfinite(values).all()
    assert (values >= 0).all()


def test_points_of_different_locations_are_evaluated_together(conv: Formulas) -> None:
    points = conv.sketch.sample(40, seed=2)
    assert len(conv.sketch.by_structure(points)) > 1
    together = conv.evaluate(points)
    one_by_one = np.concatenate([conv.evaluate(points[i : i + 1]) for i in range(len(points))])
    np.testing.assert_array_equal(together, one_by_one)


def test_an_inlined_block_is_a_row_of_zeros(conv: Formulas) -> None:
    points = conv.sketch.sample(60, seed=3)
    (location,) = conv.sketch.location_columns
    inlined = points[points[:, location] == -2]
    assert len(inlined)
    row = conv.stores.index("pad_temp")
    values = conv.evaluate(inlined)
    assert not values[:, row].any()
    assert values[:, [i for i in range(len(conv.stores)) if i != row]].any(axis=2).all()


def test_work_does_not_depend_on_the_schedule() -> None:
    features_of_sketch = formulas(sketches(workloads.matmul(24, 36, 48))[2])
    values = features_of_sketch.evaluate(features_of_sketch.sketch.sample(30, seed=4))
    multiplications = values[:, features_of_sketch.stores.index("C"), NAMES.index("float_mul")]
    assert (multiplications == 24 * 36 * 48).all()


def test_a_non_symbolic_sketch_is_refused() -> None:
    non_symbolic = next(s for s in sketches(workloads.large_sum()) if not s.is_symbolic)
    with pytest.raises(UnsupportedSketch, match="more than 1000000 values"):
        formulas(non_symbolic)


@pytest.mark.parametrize("wrong", [None, 5, "x", workloads.matmul])
def test_formulas_refuses_other_types(wrong: Any) -> None:
    with pytest.raises(
        InvalidOption, match=r"formulas: expected sketch to be .*\. give one of what .*sketches\(task\) returns"
    ):
        formulas(wrong)


def test_points_are_rows_of_whole_numbers() -> None:
    sketch = sketches(workloads.matmul(16, 16, 16))[0]
    features_of_sketch, points = formulas(sketch), sketch.sample(3, seed=0)
    np.testing.assert_array_equal(features_of_sketch.evaluate(points.tolist()), features_of_sketch.evaluate(points))
    for wrong in (points[0], points[:, :2], points + 0.5, None):
        with pytest.raises(InvalidPoint, match=r"not whole numbers \[count, 11\]"):
            features_of_sketch.evaluate(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"device to be .*, got a str\. give a felixlike.Device"):
        formulas(sketch, "cpu")  # type: ignore[arg-type]
