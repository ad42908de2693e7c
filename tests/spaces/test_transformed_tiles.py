"""The rule `transformed_tiles`: a golden program, exact formulas, results for odd sizes, and what it declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import workloads
from schedules import as_module, equal_counts, equal_results

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.frontend.rewrites.winograd import Plan, Tiled, in_one_function
from felixlike.frontend.task import make_task
from felixlike.hardware import target_device
from felixlike.spaces.cpu.transformed_tiles import transformed_tiles
from felixlike.symbolic import Sketch, sketches

AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _plan(*sizes: int, channels: tuple[int, int] = (16, 16), tile: int = 4, batch: int = 1) -> Plan:
    tiled = tuple(Tiled(size=n, output=n, taps=3, padding=1, tile=tile) for n in sizes)
    return Plan(batch, *channels, (), tiled)


def _relu(y: Any) -> Any:
    return topi.nn.relu(y)


def _silu(y: Any) -> Any:
    return topi.multiply(y, topi.sigmoid(y))


def _convolution(plan: Plan, epilogue: Callable[[Any], Any] = _relu, *, residual: bool = False) -> Any:
    x = te.placeholder((plan.batch, *(t.size for t in plan.tiled), plan.inputs), name="X")
    weights = te.placeholder((*(t.points for t in plan.tiled), plan.inputs, plan.outputs), name="U")
    added = te.placeholder((plan.batch, *(t.output for t in plan.tiled), plan.outputs), name="R")
    y = in_one_function(x, weights, plan)
    y = epilogue(topi.add(y, added) if residual else y)
    return te.create_prim_func([x, weights, *([added] if residual else []), y])


def _sketch() -> Sketch:
    task = make_task(_convolution(_plan(16, 12, channels=(16, 32))), AVX512, name="transformed", constants=[1])
    (sketch,) = sketches(task, space="own")
    assert sketch.is_symbolic, sketch.reason
    return sketch


def test_program(golden: Callable[[str, str], None]) -> None:
    golden("programs/own_transformed_tiles", str(_sketch().program))


def test_formulas_equal_brute_force_counts() -> None:
    sketch = _sketch()
    assert equal_counts(sketch, sketch.sample(3, seed=5)) > 0


@pytest.mark.parametrize(
    ("plan", "epilogue", "residual"),
    [
        (_plan(16, 12), _relu, False),
        (_plan(7, 13), _relu, True),
        (_plan(8, 53, tile=2), _silu, False),
        (_plan(9, 6, channels=(24, 32), batch=3), _silu, True),
        (_plan(5, 6, channels=(7, 64)), _relu, False),
    ],
    ids=["whole tiles", "odd, with a residual", "tiles of 2, SiLU", "images", "channels that fill no vector"],
)
def test_results_are_correct(plan: Plan, epilogue: Callable[[Any], Any], residual: bool) -> None:
    """Schedules with other decisions are correct, and the schedule can be restored from its stored trace."""
    task = make_task(_convolution(plan, epilogue, residual=residual), AVX512, name="main", constants=[1])
    module = task.module
    (schedule,) = transformed_tiles(_tvm.Schedule(module), target_device(AVX512))
    equal_results(schedule, module)


@pytest.mark.parametrize("name", ["matmul", "softmax", "chain", "max_pool", "split_heads"])
def test_other_operators_are_declined(name: str) -> None:
    module = as_module(workloads.ALL[name]())
    assert transformed_tiles(_tvm.Schedule(module), target_device(AVX512)) == []


def test_channels_that_fill_no_vector_are_declined() -> None:
    task = make_task(_convolution(_plan(16, 12, channels=(16, 24))), AVX512, name="main", constants=[1])
    assert transformed_tiles(_tvm.Schedule(task.module), target_device(AVX512)) == []
