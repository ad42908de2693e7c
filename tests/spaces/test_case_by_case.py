"""Cases: golden programs, exact formulas, right answers over odd sizes, and declined where it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads

from benchmarks import oracles
from felixlike import tvmlib
from felixlike.features import NAMES, formulas
from felixlike.frontend.rewrites.winograd import Plan, Tiled, Window, transformed_input, transformed_output
from felixlike.frontend.task import make_task
from felixlike.measure.reference import double_precision
from felixlike.spaces.cases import case_by_case
from felixlike.symbolic import Sketch, sketches
from felixlike.tvmlib import te, topi

AVX512 = tvmlib.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _plan(*sizes: int, channels: int = 16, tile: int = 4, batch: int = 1, slices: int = 0) -> Plan:
    tiled = tuple(Tiled(size=n, output=n, taps=3, padding=1, tile=tile) for n in sizes)
    windows = tuple(Window(size=n, output=n, taps=3, stride=1, dilation=1, padding=1) for n in [slices] if n)
    return Plan(batch, channels, channels, windows, tiled)


def _input(plan: Plan) -> Any:
    sizes = [*(w.size for w in plan.windows), *(t.size for t in plan.tiled)]
    x = te.placeholder((plan.batch, *sizes, plan.inputs), name="X")
    return te.create_prim_func([x, transformed_input(x, plan)])


def _output(plan: Plan) -> Any:
    around = [plan.batch, *(w.output for w in plan.windows), *(t.count for t in plan.tiled)]
    m = te.placeholder((*(t.points for t in plan.tiled), *around, plan.outputs), name="M")
    bias = te.placeholder((plan.outputs,), name="bias")
    return te.create_prim_func([m, bias, topi.nn.relu(topi.add(transformed_output(m, plan), bias))])


CASES: dict[str, Callable[[], Any]] = {
    "tiles_taken": lambda: _input(_plan(12, 8)),
    "tiles_put": lambda: _output(_plan(12, 8)),
}


def _sketch(name: str) -> Sketch:
    (sketch,) = sketches(make_task(CASES[name](), AVX512, name=name), space="own")
    assert sketch.understood, sketch.reason
    return sketch


@pytest.mark.parametrize("name", CASES)
def test_program(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"programs/own_{name}", str(_sketch(name).program))


@pytest.mark.parametrize("name", CASES)
def test_formulas_equal_what_is_counted(name: str) -> None:
    sketch = _sketch(name)
    found = formulas(sketch, oracles.SMALL_CACHES)
    points = sketch.sample(2, seed=5)
    for point, rows in zip(points.tolist(), found.evaluate(points), strict=True):
        assert sketch.accepts(point)
        counted = oracles.count(sketch, tuple(point), oracles.SMALL_CACHES)
        assert set(counted) == set(found.stores)
        for block, columns in counted.items():
            for column, value in columns.items():
                assert np.isclose(rows[found.stores.index(block)][NAMES.index(column)], value, rtol=1e-9), column


@pytest.mark.parametrize(
    "plan",
    [
        _plan(7, 13),
        _plan(1, 53, tile=2),
        _plan(9, 6, channels=24, batch=3),
        _plan(5, 6, channels=7),
        _plan(11),
        _plan(6, 5, slices=3),
    ],
    ids=["odd", "tiles of 2", "images", "channels that fill no vector", "one dimension", "slices"],
)
@pytest.mark.parametrize("make", [_input, _output])
def test_answers_are_right(make: Callable[[Plan], Any], plan: Plan) -> None:
    """With two sets of decisions; and the schedule comes back from its stored trace."""
    module = tvmlib.IRModule({"main": make(plan).with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})
    (found,) = case_by_case(tvmlib.Schedule(module), 8)
    stored = tvmlib.Schedule(module)
    tvmlib.Trace.apply_json_to_schedule(found.trace.as_json(), stored)
    tvmlib.ir.assert_structural_equal(stored.mod, found.mod)
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.shape] for parameter in module["main"].params]
    arguments = [rng.uniform(-1, 1, shape) for shape in shapes[:-1]]
    truth = _run(double_precision(module), [*arguments, np.full(shapes[-1], np.nan)])
    single = [argument.astype("float32") for argument in [*arguments, np.full(shapes[-1], np.nan)]]
    for seed in (1, 2):
        replayed = tvmlib.Schedule(module, seed=seed)
        tvmlib.Trace(found.trace.insts, {}).apply_to_schedule(replayed, remove_postproc=False)
        np.testing.assert_allclose(_run(replayed.mod, single), truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max())


@pytest.mark.parametrize("name", ["matmul", "softmax", "chain", "max_pool", "split_heads"])
def test_declined(name: str) -> None:
    module = tvmlib.IRModule({"main": workloads.ALL[name]().with_attr("global_symbol", "main")})
    assert case_by_case(tvmlib.Schedule(module), 8) == []


def _run(module: Any, arguments: list[Any]) -> Any:
    tensors = [tvmlib.runtime.tensor(argument) for argument in arguments]
    tvmlib.compile_primfuncs(module, tvmlib.Target("llvm")).jit()["main"](*tensors)
    return tensors[-1].numpy()
