"""The number of lanes follows the type of the computation: a float64 vector has half as many as a float32 vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schedules import as_module, run

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.codegen.annotations import Transpose
from felixlike.frontend.task import make_task
from felixlike.spaces.stages import item_bits
from felixlike.symbolic import sketches

AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _primfunc(operator: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> Any:
    x = te.placeholder(shape, dtype, name="x")
    return te.create_prim_func([x, operator(x)])


@pytest.mark.parametrize(
    ("operator", "dtype", "bits"),
    [
        (topi.nn.softmax, "float32", 32),
        (topi.nn.softmax, "float64", 64),
        (topi.nn.relu, "float16", 32),
        (topi.nn.relu, "bfloat16", 32),
        (topi.negative, "int64", 64),
        (topi.negative, "int8", 32),
        (lambda x: topi.cast(x, "float64"), "float32", 64),
        (lambda x: topi.cast(x, "float32"), "int64", 32),
        (lambda x: topi.argmax(x, axis=1), "float32", 32),
        (topi.logical_not, "bool", 32),
        (lambda x: topi.cumsum(x, axis=1), "float32", 32),  # its block does not declare what it writes
    ],
)
def test_item_bits_is_the_width_of_the_computation(operator: Callable[..., Any], dtype: str, bits: int) -> None:
    assert item_bits(_tvm.Schedule(as_module(_primfunc(operator, (8, 8), dtype)))) == bits


def _longest_vector(sketch: Any) -> int:
    """Return the extent of the longest vector loop of a schedule."""
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    loops = _tvm.found(schedule.mod["main"].body, _tvm.tirx.For)
    return max(int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED)


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 16), ("float64", 8), ("float16", 16)])
@pytest.mark.parametrize("operator", [topi.nn.softmax, lambda x: topi.nn.relu(topi.add(x, x))], ids=["rows", "flat"])
def test_vectors_fill_a_register(operator: Callable[..., Any], dtype: str, lanes: int) -> None:
    sketch = sketches(make_task(_primfunc(operator, (32, 512), dtype), AVX512, name="x"), space="own")[0]
    assert _longest_vector(sketch) == lanes


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 16), ("float64", 8)])
def test_blocks_of_transposed_copies_fit_into_registers(dtype: str, lanes: int) -> None:
    func = _primfunc(lambda x: topi.transpose(x, (1, 0)), (64, 48), dtype)
    (sketch,) = sketches(make_task(func, AVX512, name="x"), space="own")
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    loops = _tvm.found(schedule.mod["main"].body, _tvm.tirx.For)
    assert [Transpose.of(loop) for loop in loops if Transpose.on(loop)] == [Transpose(lanes)]
    x = np.arange(64 * 48).reshape(64, 48).astype(dtype)
    _, got = run(schedule.mod, [x, np.zeros((48, 64), dtype)])
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize(("dtype", "size"), [("float8_e4m3fn", 1), ("bfloat16", 2), ("bool", 1), ("int32x4", 16)])
def test_item_bytes_of_unusual_types(dtype: str, size: int) -> None:
    func = _primfunc(lambda x: te.compute((64,), lambda i: x[i], name="copy"), (64,), dtype)
    sketch = sketches(make_task(func, AVX512, name="x"), space="default")[0]
    store, _ = next(sketch.program.stores())
    assert {access.buffer.item_bytes for access in store.accesses} == {size}
