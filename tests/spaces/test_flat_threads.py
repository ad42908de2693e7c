"""The rule `flat_threads` for GPUs: correct, exact formulas, whole vectors, and declined operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import equal_counts, equal_to_tvms, run, without_threads
from support.operators import OPERATORS

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")


def _primfunc(operator: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Any:
    inputs = [te.placeholder(shape, name=f"x{number}", dtype=dtype) for number, shape in enumerate(shapes)]
    outputs = operator(*inputs)
    return te.create_prim_func([*inputs, *(outputs if isinstance(outputs, list) else [outputs])])


CASES: dict[str, tuple[Any, int]] = {
    "chain": (workloads.chain(30, 52), 4),
    "two": (_primfunc(topi.nn.relu, (5, 7, 6)), 2),
    "outputs": (_primfunc(lambda x: [topi.exp(x), topi.nn.relu(x)], (5, 8)), 4),
    "a number a channel": (_primfunc(lambda x, a: topi.multiply(x, topi.reshape(a, (1, 6, 1))), (2, 6, 12), (6,)), 4),
    "doubles": (_primfunc(topi.tanh, (40,), dtype="float64"), 2),
    "channels": (_primfunc(lambda x, y: topi.concatenate([x, y], axis=1), (2, 3, 8), (2, 5, 8)), 4),
}


def _sketch(name: str) -> Sketch:
    (sketch,) = sketches(CASES[name][0], SM_90, space="own")
    return sketch


@pytest.mark.parametrize("name", CASES)
def test_results_are_correct_and_loops_are_vectorized(name: str) -> None:
    sketch = _sketch(name)
    module, width = sketch.task.module, CASES[name][1]
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-3, 3, [int(e) for e in p.shape]).astype(str(p.dtype)) for p in module["main"].params]
    exact = [argument.astype("float64") for argument in arguments]
    truth = run(double_precision(module), exact)
    for point in sketch.sample(2, seed=0).tolist():
        scheduled = sketch.schedule(point).mod
        loops = _tvm.found(scheduled["main"].body, _tvm.tirx.For)
        assert {int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED} == {width}
        for got, true in zip(run(without_threads(scheduled), arguments), truth, strict=True):
            np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_formulas_are_exact(name: str) -> None:
    sketch = _sketch(name)
    points = sketch.sample(3, seed=1)
    if name != "channels":  # brute force does not count what a condition skips
        assert equal_counts(sketch, points) > 50
    equal_to_tvms(sketch, points)


@pytest.mark.parametrize(
    "func",
    [
        _primfunc(lambda x: topi.transpose(x, (1, 0)), (64, 64)),
        _primfunc(topi.nn.relu, (8, 7)),
        _primfunc(lambda x: topi.sum(x, axis=0), (16, 16)),
        OPERATORS["rotated"](),  # vectors would cross the boundary between halves
    ],
)
def test_other_operators_are_declined(func: Any) -> None:
    assert sketches(func, SM_90, space="own") == ()
