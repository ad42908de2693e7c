"""Conditions that are compared with 0 as numbers: integers' are used as they are, floats' stay comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from schedules import as_module, run

from felixlike import _tvm
from felixlike._tvm import te, tirx
from felixlike.codegen.passes import plain_conditions


def _chain(dtype: str) -> Any:
    """Return the function of z = where(x < y, 1, where(y <= x, 2, 3)) with the conditions as numbers."""
    x, y = (te.placeholder((8,), dtype, name=name) for name in "xy")

    def chosen(condition: Any, one: Any, other: Any) -> Any:
        return tirx.Select(tirx.const(0, "int32") < condition.astype("int32"), one, other)

    one, two, three = (tirx.const(number, "float32") for number in (1, 2, 3))
    z = te.compute((8,), lambda i: chosen(x[i] < y[i], one, chosen(y[i] <= x[i], two, three)), name="z")
    return as_module(te.create_prim_func([x, y, z]))


@pytest.mark.parametrize(("dtype", "casts"), [("int64", 0), ("float32", 2)])
def test_choices_are_those_of_the_conditions(dtype: str, casts: int) -> None:
    module = plain_conditions(_chain(dtype))
    assert len(_tvm.found(module["main"].body, tirx.Cast)) == casts
    x, y = (np.resize(np.array(values, dtype), 8) for values in ([1, 2, 3], [2, 1, 3]))
    expected = np.where(x < y, 1, 2)
    if dtype == "float32":
        x[3] = np.nan
        expected[3] = 3
    np.testing.assert_array_equal(run(module, [x, y, np.zeros(8, "float32")])[-1], expected)


def test_other_comparisons_stay() -> None:
    x = te.placeholder((8,), "int64", name="x")
    number = (x[0] < 3).astype("int32")
    tests = [number < 0, number > 1, tirx.NE(number, tirx.const(1, "int32")), x[0] > 0]
    y = te.compute((4,), lambda i: tirx.Select(tirx.any(*tests), i, i + 1), name="y")
    module = as_module(te.create_prim_func([x, y]))
    assert _tvm.structural_equal(plain_conditions(module), module)
