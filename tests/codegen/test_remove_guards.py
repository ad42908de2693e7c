"""`guard` removes conditions from vectors and tiles at the end of a dimension, and does not change values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Guard
from felixlike.codegen.passes import guard


def _padded_copy(length: int, lanes: int, *, annotated: bool = True) -> Any:
    """Return y[i] = 2 x[i] for i < length, padded with 1 to a whole number of vectors."""
    padded = -(-length // lanes) * lanes
    x = _tvm.te.placeholder((length,), name="x")
    y = _tvm.te.compute((padded,), lambda i: _tvm.te.if_then_else(i < length, x[i] * 2.0, 1.0), name="y")
    schedule = _tvm.Schedule(
        _tvm.IRModule({"main": _tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
    )
    _, lane = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, lanes])
    schedule.vectorize(lane)
    if annotated:
        Guard().put(schedule, lane)
    return schedule.mod


def _written_back(length: int, lanes: int) -> Any:
    """Return y[i] = 2 x[i], with a condition around the lanes of the last vector."""
    x = _tvm.te.placeholder((length,), name="x")
    y = _tvm.te.compute((length,), lambda i: x[i] * 2.0, name="y")
    schedule = _tvm.Schedule(
        _tvm.IRModule({"main": _tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
    )
    _, lane = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, lanes])
    schedule.vectorize(lane)
    Guard().put(schedule, lane)
    return schedule.mod


def _rows(count: int, size: int) -> Any:
    """Return y[i] = Σ_k x[i, k] in tiles of `size` rows, with zeros for rows that do not exist."""
    padded = -(-count // size) * size
    x, k = _tvm.te.placeholder((count, 7), name="x"), _tvm.te.reduce_axis((0, 7), name="k")
    y = _tvm.te.compute(
        (padded,), lambda i: _tvm.te.sum(_tvm.te.if_then_else(i < count, x[i, k], 0.0), axis=k), name="y"
    )
    schedule = _tvm.Schedule(
        _tvm.IRModule({"main": _tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
    )
    block = schedule.get_sblock("y")
    i, k_loop = schedule.get_loops(block)
    tile, row = schedule.split(i, [None, size])
    schedule.reorder(tile, k_loop, row)
    schedule.unroll(row)
    Guard().put(schedule, k_loop)
    schedule.decompose_reduction(block, k_loop)
    return schedule.mod


def _run(module: Any, x: Any, size: int) -> Any:
    y = _tvm.runtime.tensor(np.full(size, np.nan, "float32"))
    codegen.compile_primfuncs(module, _tvm.Target("llvm")).jit()["main"](_tvm.runtime.tensor(x), y)
    return y.numpy()


LENGTHS = [(1, 4), (7, 4), (13, 16), (16, 16), (53, 16), (113, 8)]


@pytest.mark.parametrize(("length", "lanes"), LENGTHS)
def test_padded_copies_are_correct(length: int, lanes: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, length).astype("float32")
    padded = -(-length // lanes) * lanes
    expected = np.concatenate([2 * x, np.ones(padded - length, "float32")])
    np.testing.assert_array_equal(_run(_padded_copy(length, lanes), x, padded), expected)


@pytest.mark.parametrize(("length", "lanes"), LENGTHS)
def test_copies_with_a_partial_vector_are_correct(length: int, lanes: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, length).astype("float32")
    np.testing.assert_array_equal(_run(_written_back(length, lanes), x, length), 2 * x)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (7, 4), (13, 6), (53, 12), (113, 7), (8, 4), (12, 16)])
def test_partial_tiles_are_correct(count: int, size: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (count, 7)).astype("float32")
    padded = -(-count // size) * size
    expected = np.concatenate([x.sum(axis=1), np.zeros(padded - count, "float32")])
    np.testing.assert_allclose(_run(_rows(count, size), x, padded), expected, rtol=1e-5, atol=1e-6)


def test_no_condition_remains_in_vectors() -> None:
    """53 = 3 · 16 + 4 + 1, so there are vectors of 16 and 4 without conditions."""
    loops = _tvm.found(guard(_written_back(53, 16))["main"].body, _tvm.tirx.For)
    vectors = [loop for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED]
    assert sorted(int(loop.extent) for loop in vectors) == [4, 16]
    assert not any(_tvm.found(loop.body, _tvm.tirx.IfThenElse) for loop in vectors)


def test_no_condition_remains_in_tiles() -> None:
    loops = _tvm.found(guard(_rows(53, 12))["main"].body, _tvm.tirx.For)
    reductions = [loop for loop in loops if loop.kind == _tvm.tirx.ForKind.SERIAL and int(loop.extent) == 7]
    assert sorted(int(loop.body.extent) for loop in reductions) == [5, 12]
    assert not any(_tvm.found(loop.body, _tvm.tirx.LT) for loop in reductions)


def test_unannotated_functions_are_unchanged() -> None:
    module = _padded_copy(53, 16, annotated=False)
    assert guard(module)["main"].same_as(module["main"])
