"""Turned squares: the same values, as vectors and shuffles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from felixlike import tvmlib
from felixlike.lowering import TURN, turn_squares


def _marked(size: int, dtype: str = "float32", *, element: Callable[..., Any] | None = None) -> Any:
    """y[i, j] = x[j, i] in squares of 3 by 2 blocks; or of another element."""
    from felixlike.tvmlib import te

    x = te.placeholder((2 * size, 3 * size), dtype, name="x")
    found = te.compute((3 * size, 2 * size), lambda i, j: x[j, i] if element is None else element(x, i, j), name="y")
    func = te.create_prim_func([x, found])
    schedule = tvmlib.Schedule(tvmlib.IRModule({"main": func.with_attr("global_symbol", "main")}))
    i, j = schedule.get_loops(schedule.get_sblock("y"))
    (i_outer, row), (j_outer, column) = (schedule.split(loop, [None, size]) for loop in (i, j))
    schedule.reorder(i_outer, j_outer, row, column)
    schedule.annotate(row, TURN, True)
    return schedule.mod


def _shuffles(module: Any) -> int:
    return len(tvmlib.found(module["main"].body, tvmlib.tirx.Shuffle))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_values(size: int, dtype: str) -> None:
    module = _marked(size, dtype)
    executable = tvmlib.compile_primfuncs(module, tvmlib.Target("llvm"))
    x = np.arange(6 * size * size).reshape(2 * size, 3 * size).astype(dtype)
    y = tvmlib.runtime.tensor(np.zeros((3 * size, 2 * size), dtype))
    executable.jit()["main"](tvmlib.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x.T)
    assert _shuffles(turn_squares(module)) == size * (size.bit_length() - 1)


def test_what_is_not_contiguous_stays() -> None:
    module = _marked(4, element=lambda x, i, j: x[j, 11 - i])
    assert _shuffles(turn_squares(module)) == 0


def test_functions_without_marks_stay() -> None:
    from felixlike.tvmlib import te

    x = te.placeholder((8, 8), name="x")
    func = te.create_prim_func([x, te.compute((8, 8), lambda i, j: x[j, i], name="y")])
    module = tvmlib.IRModule({"main": func})
    assert turn_squares(module)["main"].same_as(module["main"])
