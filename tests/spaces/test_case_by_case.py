"""The rule `case_by_case`: golden programs, exact formulas, correct results for odd sizes, and declined operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import workloads
from schedules import as_module, equal_counts, equal_results

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.frontend.rewrites.winograd import Plan, Tiled, Window, transformed_input, transformed_output
from felixlike.frontend.task import make_task
from felixlike.spaces.cpu.tile_cases import case_by_case
from felixlike.symbolic import Sketch, sketches

AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _plan(*sizes: int, channels: int = 16, tile: int = 4, batch: int = 1, slices: int = 0) -> Plan:
    tiled = tuple(Tiled(size=n, output=n, taps=3, padding=1, tile=tile) for n in sizes)
    windows = tuple(Window(size=n, output=n, taps=3, stride=1, dilation=1, padding=1) for n in [slices] if n)
    return Plan(batch, channels, channels, windows, tiled)


def _input(plan: Plan) -> Any:
    sizes = [*(w.size for w in plan.windows), *(t.size for t in plan.tiled)]
    x = te.placeholder((plan.batch, *sizes, plan.inputs), name="X")
    return te.create_prim_func([x, transformed_input(x, plan)])


def _output(plan: Plan) -> Any:
    batch_and_counts = [plan.batch, *(w.output for w in plan.windows), *(t.count for t in plan.tiled)]
    m = te.placeholder((*(t.points for t in plan.tiled), *batch_and_counts, plan.outputs), name="M")
    bias = te.placeholder((plan.outputs,), name="bias")
    return te.create_prim_func([m, bias, topi.nn.relu(topi.add(transformed_output(m, plan), bias))])


CASES: dict[str, Callable[[], Any]] = {
    "tiles_taken": lambda: _input(_plan(12, 8)),
    "tiles_put": lambda: _output(_plan(12, 8)),
}


def _sketch(name: str) -> Sketch:
    (sketch,) = sketches(make_task(CASES[name](), AVX512, name=name), space="own")
    assert sketch.is_symbolic, sketch.reason
    return sketch


@pytest.mark.parametrize("name", CASES)
def test_program(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"programs/own_{name}", str(_sketch(name).program))


@pytest.mark.parametrize("name", CASES)
def test_formulas_equal_brute_force_counts(name: str) -> None:
    sketch = _sketch(name)
    assert equal_counts(sketch, sketch.sample(2, seed=5)) > 0


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
def test_results_are_correct(make: Callable[[Plan], Any], plan: Plan) -> None:
    """Schedules with two sets of decisions are correct, and the schedule can be restored from its stored trace."""
    module = as_module(make(plan))
    (schedule,) = case_by_case(_tvm.Schedule(module), 8)
    equal_results(schedule, module)


@pytest.mark.parametrize("name", ["matmul", "softmax", "chain", "max_pool", "split_heads"])
def test_other_operators_are_declined(name: str) -> None:
    assert case_by_case(_tvm.Schedule(as_module(workloads.ALL[name]())), 8) == []
