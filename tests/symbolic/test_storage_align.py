"""Traces with aligned buffer steps: programs, formulas, constraints and TVM's view remain exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from support import oracles
from support.tvm_view import tvm_view

from felixlike import _tvm
from felixlike.features import NAMES, formulas
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.spaces import default_space
from felixlike.symbolic import Sketch, concrete_nest
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.replay.postprocessors import shared_bytes

ALIGN = (0, 4, 1)
"""Dimension, factor and offset."""


def aligned(target: str, n: int = 12, k: int = 24, m: int = 10) -> Sketch:
    """Return a matmul sketch that copies tiles of A, with rows 1, 5, 9, … elements apart."""
    task = make_task(workloads.matmul(n, k, m), resolve_target(target), name="matmul")
    schedule = _tvm.Schedule(task.module, seed=1)
    block = schedule.get_sblock("C")
    tiles: list[Any] = []
    for loop in schedule.get_loops(block):
        factors = schedule.sample_perfect_tile(loop, 2, 1024)
        tiles.append(schedule.split(loop, factors))
    (i0, i1), (j0, j1), (k0, k1) = tiles
    schedule.reorder(i0, j0, i1, j1, k0, k1)
    copy = schedule.cache_read(block, 0, "shared" if target != "cpu" else "global")
    if target != "cpu":
        schedule.bind(schedule.fuse(i0, j0), "blockIdx.x")
        schedule.bind(schedule.fuse(i1, j1), "threadIdx.x")
    schedule.compute_at(copy, k0, preserve_unit_loops=True)
    if target != "cpu":
        schedule.fuse(*schedule.get_loops(copy)[3:])
        schedule.annotate(copy, "meta_schedule.cooperative_fetch", _tvm.tirx.IntImm("int64", 1))
    schedule.storage_align(copy, 0, *ALIGN)
    return Sketch(task, schedule.trace, default_space(task).postprocessors, 0)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_program(target: str, golden: Callable[[str, str], None]) -> None:
    golden(f"programs/storage_align_{target}", str(aligned(target).program))


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_nests_counts_and_views_are_exact(target: str) -> None:
    sketch = aligned(target)
    features_of_sketch = formulas(sketch, oracles.SMALL_CACHES)
    points = sketch.sample(12, seed=4)
    steps = set()
    for point, rows, ours in zip(
        points.tolist(), features_of_sketch.evaluate(points), tvm_view(features_of_sketch, points), strict=True
    ):
        schedule = sketch.schedule(point)
        values = dict(zip([v.name for v in sketch.variables], point, strict=True))
        assert concrete_nest(sketch.program, values) == oracles.tvm_nest(schedule)
        theirs = oracles.tvm_features(sketch, schedule)
        assert np.allclose(ours, theirs, rtol=1e-6, equal_nan=False)
        for block, columns in oracles.count(sketch, tuple(point), oracles.SMALL_CACHES).items():
            row = dict(zip(NAMES, rows[features_of_sketch.stores.index(block)], strict=True))
            assert {name: row[name] for name in columns} == pytest.approx(columns), (point, block)
        (buffer,) = [b for b in sketch.program.buffers if b.aligns]
        steps_here = [round(evaluate(step, values)) for step in buffer.steps]
        assert steps_here == _steps_in_tvm(schedule)
        steps.add(steps_here[0])
    assert len(steps) > 2
    assert {step % 4 for step in steps} == {1}


def _steps_in_tvm(schedule: Any) -> list[int]:
    """Return the strides of the copy in TVM's lowered function."""
    passes = _tvm.s_tir.transform
    module = schedule.mod
    for name in (
        "LowerInitBlock",
        "PlanAndUpdateBufferAllocationLocation",
        "ConvertBlocksToOpaque",
        "CompactBufferAllocation",
    ):
        module = getattr(passes, name)()(module)
    buffers: list[Any] = []
    _tvm.structural_walk(module["main"].body, (_tvm.s_tir.SBlock, lambda b: buffers.extend(b.alloc_buffers)))
    (buffer,) = [b for b in buffers if len(b.strides)]
    return [int(_tvm.simplify(stride)) for stride in buffer.strides]


def test_padding_between_rows_counts_as_shared_memory() -> None:
    sketch = aligned("sm_90", 1024, 24, 4)
    limit = int(sketch.task.target.attrs["max_shared_memory_per_block"])
    for inner, step, fits in ((8, 9, True), (12, 13, False)):  # 1024 rows of 12 elements without padding would fit
        point = [1, 1024, 4, 1, 24 // inner, inner]
        values = dict(zip([v.name for v in sketch.variables], point, strict=True))
        assert evaluate(shared_bytes(sketch.program), values) == 4 * 1024 * step
        assert 4 * 1024 * inner <= limit
        assert sketch.accepts(point) == sketch.valid(np.array([point]))[0] == fits
