"""`rows_in_vectors` vectorizes loops along rows of any length: same values, and no access outside of the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Row
from felixlike.codegen.passes import rows_in_vectors

_LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 40)


def _module(value: Callable[[Any, Any], Any], *, length: int | None = None, reduced: Any = None) -> Any:
    """Return y[i, k] = value(x, (i, k)), or its reduction over k, with the loop over k annotated for vectors of 16.

    Args:
        value: the elements.
        length: length of the rows; None for a dynamic length.
        reduced: the reduction, if any."""
    te, n = _tvm.te, length or _tvm.tirx.Var("n", "int64")
    x = te.placeholder((3, n), name="x")
    if reduced is None:
        y = te.compute((3, n), lambda i, k: value(x, (i, k)), name="y")
    else:
        k = te.reduce_axis((0, n), name="k")
        y = te.compute((3,), lambda i: reduced(value(x, (i, k)), axis=k), name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block = schedule.get_sblock("y")
    if reduced is not None:
        schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    Row(16).put(schedule, schedule.get_loops(block)[1])
    return schedule.mod


def _vectors(module: Any) -> list[int]:
    loops = _tvm.found(rows_in_vectors(module)["main"].body, _tvm.tirx.For)
    return [int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED]


def _run(module: Any, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    run = codegen.compile_primfuncs(module, _tvm.Target("llvm")).jit()["main"]
    y = _tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    run(_tvm.runtime.tensor(x), y)
    result: np.ndarray[Any, Any] = y.numpy()
    return result


def _rows(length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(length).normal(size=(3, length)).astype("float32")


def test_elementwise_rows_of_every_length() -> None:
    module = _module(lambda x, at: _tvm.tirx.exp(x[at] - x[at[0], 0]))
    assert _vectors(module) == [16, 16]
    for length in _LENGTHS:
        x = _rows(length)
        np.testing.assert_allclose(_run(module, x, x.shape), np.exp(x - x[:, :1]), rtol=1e-6)


@pytest.mark.parametrize(("name", "wanted"), [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_reductions_of_rows_of_every_length(name: str, wanted: Any) -> None:
    module = _module(lambda x, at: x[at] * 2.0, reduced=getattr(_tvm.te, name))
    assert _vectors(module) == [16, 16, 8, 4, 2]
    for length in _LENGTHS:
        x = _rows(length)
        np.testing.assert_allclose(_run(module, x, (3,)), wanted(2 * x, axis=1), rtol=1e-5, atol=1e-6)
    x[0, 33], x[1, :] = np.nan, -np.inf if name == "max" else np.inf
    np.testing.assert_array_equal(_run(module, x, (3,)), wanted(2 * x, axis=1))


@pytest.mark.parametrize(("length", "vectors"), [(5, []), (16, [16]), (40, [16, 16])])
def test_static_lengths(length: int, vectors: list[int]) -> None:
    module = _module(lambda x, at: x[at] + 1.0, length=length)
    assert _vectors(module) == vectors
    x = _rows(length)
    np.testing.assert_array_equal(_run(module, x, x.shape), x + 1)


def test_rows_that_are_not_contiguous_are_unchanged() -> None:
    every_other = _module(lambda x, at: x[at[0], at[1] // 2])
    guarded = _module(lambda x, at: _tvm.tirx.if_then_else(at[1] > 2, x[at], 0.0))
    backwards = _module(lambda x, at: x[at[0], x.shape[1] - 1 - at[1]])
    x = _rows(19)
    for module, expected in (
        (every_other, x[:, np.arange(19) // 2]),
        (guarded, np.where(np.arange(19) > 2, x, 0)),
        (backwards, x[:, ::-1]),
    ):
        assert _vectors(module) == []
        np.testing.assert_array_equal(_run(module, x, x.shape), expected)
