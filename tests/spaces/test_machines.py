"""Register tiles for other processors: accumulators stay in registers, and code runs where this machine supports it."""

from __future__ import annotations

from typing import Any

import pytest
from support import operators as op
from support.assembly import count, innermost_loops, spilled

from felixlike import _tvm, codegen
from felixlike.frontend.task import make_task
from felixlike.hardware.vectors import VectorUnit, vector_unit
from felixlike.measure import MeasurePool, Status
from felixlike.measure.packing import cut
from felixlike.search import Candidate
from felixlike.symbolic import sketches

TARGETS: dict[str, tuple[dict[str, Any], VectorUnit, str]] = {
    "AVX-512": ({"mcpu": "skylake-avx512"}, VectorUnit(512, 32), r"vfmadd\S*\s.*%zmm"),
    "AVX2": ({"mcpu": "haswell"}, VectorUnit(256, 16), r"vfmadd\S*\s.*%ymm"),
    "NEON": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, VectorUnit(128, 32), r"fmla\s"),
}
"""Target, its vector unit, and a pattern for its multiply-adds in assembly."""


def _target(name: str) -> Any:
    return _tvm.Target({"kind": "llvm", "num-cores": 2, **TARGETS[name][0]})


@pytest.mark.parametrize("name", TARGETS)
def test_vector_units_are_derived_from_features(name: str) -> None:
    assert vector_unit(_tvm.cpu_features(_target(name))) == TARGETS[name][1]


@pytest.mark.parametrize(
    ("name", "operator"),
    # For NEON, LLVM unrolls the taps of convolutions and spills shared values. This is a known problem.
    [*((name, "dense") for name in TARGETS), ("AVX-512", "convolution"), ("AVX2", "convolution")],
)
def test_accumulators_stay_in_registers(name: str, operator: str) -> None:
    func = op.dense(64, 96, 192) if operator == "dense" else op.conv2d(16, 16, 64)
    task = make_task(func, _target(name), name=name, constants=[1])
    (sketch,) = sketches(task, space="own")
    for point in sketch.sample(4, seed=2).tolist():
        kernel, _ = cut(sketch.schedule(point).mod["main"])
        built = codegen.compile_primfuncs(_tvm.IRModule({"main": kernel}), task.target)
        multiply = TARGETS[name][2]
        hot = max(innermost_loops(built.mod.inspect_source("asm")), key=lambda loop: count(loop, multiply))
        assert count(hot, multiply) >= 4
        assert not spilled(hot), point


def test_avx2_code_runs_and_is_correct() -> None:
    task = make_task(op.dense(40, 48, 96), _target("AVX2"), name="dense", constants=[1])
    (sketch,) = sketches(task, space="own")
    candidates = [Candidate(sketch, tuple(p), 0.0, "random") for p in sketch.sample(3, seed=1).tolist()]
    if "avx2" not in _tvm.host_features():
        pytest.skip("this processor has no AVX2")
    with MeasurePool(task.target) as pool:
        assert [measurement.status for measurement in pool.measure(task, candidates)] == [Status.OK] * 3
