"""The rule `row_threads`: correct, exact formulas, no shared memory within a warp, and declined operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import workloads
from schedules import comes_back, equal_counts, equal_to_tvms, run, without_threads
from support.operators import OPERATORS

from felixlike import codegen
from felixlike._tvm import te, topi
from felixlike.codegen.cuda import cuda_source
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")
NAMES = ["softmax", "softmax_3d", "log_softmax", "layer_norm", "rms_norm", "sum_rows"]


def _sketch(name: str, *, small: bool = True) -> Sketch:
    (sketch,) = sketches(OPERATORS[name](small_size=small), SM_90, space="own")
    return sketch


@pytest.mark.parametrize("name", NAMES)
def test_results_are_correct(name: str) -> None:
    sketch = _sketch(name)
    module = sketch.task.module
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-3, 3, [int(e) for e in p.shape]) for p in module["main"].params]
    truth = run(double_precision(module), arguments)[-1]
    single = [argument.astype("float32") for argument in arguments]
    for point in sketch.sample(3, seed=3).tolist():
        schedule = sketch.schedule(point)
        comes_back(schedule, module)
        got = run(without_threads(schedule.mod), single)[-1]
        np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_formulas_are_exact(name: str) -> None:
    small, sketch = _sketch(name), _sketch(name, small=False)
    assert equal_counts(small, small.sample(3, seed=5)) > 50
    points = sketch.sample(4, seed=7)
    equal_to_tvms(sketch, points)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_points_are_valid_exactly_where_they_are_accepted(name: str) -> None:
    sketch = _sketch(name, small=False)
    drawn = sketch.sampler.any.draw(30, np.random.default_rng(2))
    valid = sketch.valid(drawn)
    assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]
    assert 0 < valid.sum() < len(valid)  # for example, 16 rows of 512 threads exceed the limit


def test_a_warp_needs_no_shared_memory() -> None:
    sketch = _sketch("softmax", small=False)
    names = [v.name for v in sketch.variables]
    (threads,) = (i for i, name in enumerate(names) if name.startswith("threads"))
    for point in sketch.sample(40, seed=1).tolist():
        source = cuda_source(codegen.compile_primfuncs(sketch.schedule(point).mod, SM_90))
        assert "__shfl_down_sync" in source
        assert ("__shared__" in source) is (point[threads] > 32)
        assert ("__syncthreads" in source) is (point[threads] > 32)


def _two_outputs() -> Any:
    x = te.placeholder((16, 32), name="X")
    total = topi.sum(x, axis=1, keepdims=True)
    return te.create_prim_func([x, total, topi.divide(x, total)])


@pytest.mark.parametrize(
    "func",
    [
        OPERATORS["sum_columns"](),  # neighbouring threads would not read neighbouring elements
        OPERATORS["max_middle"](),
        OPERATORS["sum_all"](),  # one row only
        OPERATORS["global_pool"](),  # the epilogue divides a single number
        workloads.max_pool(),
        _two_outputs(),
    ],
)
def test_other_operators_are_declined(func: Any) -> None:
    assert sketches(func, SM_90, space="own") == ()
