"""The rule `flat`: correct for odd sizes and several decisions, whole vectors, and declined operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import as_module, comes_back, decided_anew, run

from felixlike import _tvm
from felixlike._tvm import te, tirx, topi
from felixlike.codegen.annotations import Peel
from felixlike.measure.check.reference import double_precision
from felixlike.spaces.cpu.flat import flat

_LANES = 8


def _primfunc(operator: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    inputs = [te.placeholder(shape, name=f"x{number}") for number, shape in enumerate(shapes)]
    outputs = operator(*inputs)
    return te.create_prim_func([*inputs, *(outputs if isinstance(outputs, list) else [outputs])])


def _with_part_replaced(x: Any, y: Any) -> Any:
    """Return x with y from column 2 on, chosen as topi's `where` does by a condition as a number."""
    return te.compute(
        x.shape,
        lambda i, j: tirx.Select(
            tirx.const(0, "int64") < (j >= tirx.const(2, j.ty.dtype)).astype("int64"), y[i, tirx.max(j - 2, 0)], x[i, j]
        ),
        name="chosen",
    )


_CASES: dict[str, Callable[[int], Any]] = {
    "relu": lambda n: _primfunc(topi.nn.relu, (3, 5, n)),
    "one dimension": lambda n: _primfunc(topi.tanh, (n,)),
    "a number a channel": lambda n: _primfunc(
        lambda x, a: topi.nn.relu(topi.multiply(x, topi.reshape(a, (1, 6, 1, 1)))), (2, 6, 7, n), (6,)
    ),
    "a number a column": lambda n: _primfunc(lambda x, a: topi.exp(topi.add(x, a)), (5, n), (n,)),
    "used twice": lambda n: _primfunc(lambda x: topi.multiply(x, topi.sigmoid(x)), (5, 4, n)),
    "two outputs": lambda n: _primfunc(lambda x: [topi.exp(x), topi.nn.relu(x)], (5, n)),
    "halves": lambda n: _primfunc(lambda x: topi.concatenate([x, topi.negative(x)], axis=-1), (5, n)),
    "channels": lambda n: _primfunc(lambda x, y: topi.concatenate([x, y], axis=1), (2, 3, n), (2, 5, n)),
    "stack": lambda n: _primfunc(
        lambda x, y: topi.reshape(topi.concatenate([x, y], axis=1), (5, 2, n)), (5, n), (5, n)
    ),
    "three parts": lambda n: _primfunc(
        lambda x, y, z: topi.concatenate([x, y, topi.exp(z)], axis=-1), (5, n), (5, 1), (5, 2 * n)
    ),
    "again and again": lambda n: _primfunc(lambda x: topi.tile(x, (2, 3)), (5, n)),
    "reflection": lambda n: _primfunc(lambda x: topi.nn.mirror_pad(x, (0, 2), (0, 1), "REFLECT"), (5, n)),
    "all around": lambda n: _primfunc(lambda x: topi.nn.pad(x, (0, 1, 1), (0, 1, 1)), (2, n, n)),
    "padding": lambda n: _primfunc(lambda x: topi.nn.pad(x, (0, 1), (0, 2)), (5, n)),
    "part replaced": lambda n: _primfunc(_with_part_replaced, (5, n), (5, n)),
    "every other": lambda n: _primfunc(lambda x: topi.strided_slice(x, [0, 0], [5, 2 * n], [1, 2]), (5, 2 * n)),
}


def _vectors(module: Any) -> set[int]:
    loops = _tvm.found(module["main"].body, _tvm.tirx.For)
    return {int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED}


_ANY = ("relu", "a number a channel", "two outputs", "halves", "stack", "three parts", "all around")
"""Those that are tested with more sizes, which the others have in common with them."""


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *((name, n) for name in _CASES for n in (7, 8, 28, 53)),
        *((name, n) for name in _ANY for n in (4, 13, 64, 113)),
    ],
)
def test_results_are_correct(name: str, n: int) -> None:
    """Schedules can be restored from their stored traces, and are correct with two other sets of decisions."""
    module = as_module(_CASES[name](n))
    schedules = flat(_tvm.Schedule(module), _LANES)
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-3, 3, [int(e) for e in p.shape]) for p in module["main"].params]
    truth = run(double_precision(module), arguments)
    single = [argument.astype("float32") for argument in arguments]
    for schedule in schedules:
        comes_back(schedule, module)
        for variant in decided_anew(schedule, module):
            for got, true in zip(run(variant, single), truth, strict=True):
                np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "n", "vectors"),
    [
        ("relu", 64, {8}),
        ("relu", 28, set()),  # 3 · 5 · 28 elements do not fill whole vectors; codegen peels the rest
        ("a number a channel", 8, {8}),
        ("a number a channel", 16, {8}),
        ("used twice", 13, set()),
        ("used twice", 26, {8}),  # 4 · 26
        ("two outputs", 64, {8}),
        ("halves", 24, set()),  # peeled on both sides of the boundary, also where no vector crosses it
        ("halves", 12, set()),
    ],
)
def test_vector_loops_are_whole(name: str, n: int, vectors: set[int]) -> None:
    module = as_module(_CASES[name](n))
    (schedule,) = flat(_tvm.Schedule(module), _LANES)
    assert _vectors(schedule.mod) == vectors


@pytest.mark.parametrize(("name", "n", "seam"), [("halves", 24, 24), ("part replaced", 64, 2)])
def test_loops_are_split_where_parts_meet(name: str, n: int, seam: int) -> None:
    """The vectors' loop has a seam there, which code generation splits it at."""
    (schedule,) = flat(_tvm.Schedule(as_module(_CASES[name](n))), _LANES)
    (loop,) = [loop for loop in _tvm.found(schedule.mod["main"].body, _tvm.tirx.For) if Peel.on(loop)]
    assert Peel.of(loop).seams == (seam,)


@pytest.mark.parametrize("columns", [1, 4])
def test_comparisons_of_data_are_computed_in_vectors(columns: int) -> None:
    """Every lane chooses for itself, so loops are fused as if nothing was compared."""
    x = te.placeholder((24, columns), "int64", name="x")
    y = te.compute(x.shape, lambda i, j: tirx.Select(x[i, j] < 3, x[i, j] + 7, x[i, j]), name="y")
    module = as_module(te.create_prim_func([x, y]))
    (schedule,) = flat(_tvm.Schedule(module), _LANES)
    assert _vectors(schedule.mod) == {_LANES}
    data = np.arange(24 * columns).reshape(24, columns) % 7
    np.testing.assert_array_equal(run(schedule.mod, [data, data])[-1], np.where(data < 3, data + 7, data))


def test_the_original_schedule_is_unchanged() -> None:
    schedule = _tvm.Schedule(as_module(_CASES["used twice"](16)))
    before = str(schedule.mod)
    flat(schedule, _LANES)
    assert str(schedule.mod) == before
    assert not schedule.trace.insts


@pytest.mark.parametrize(
    "func",
    [
        workloads.matmul(),
        workloads.max_pool(),
        _primfunc(lambda x: topi.transpose(x, (1, 0)), (64, 64)),
        _primfunc(lambda x: topi.sum(x, axis=1), (16, 16)),
        _primfunc(topi.nn.relu, (1, 1)),
    ],
    ids=["matmul", "windows", "transposed", "sum", "one element"],
)
def test_other_operators_are_declined(func: Any) -> None:
    assert flat(_tvm.Schedule(as_module(func)), _LANES) == []
