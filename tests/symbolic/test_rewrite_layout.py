"""Constants packed for the schedule: programs, formulas and TVM's view are exact, unsupported layouts are refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from schedules import equal_counts
from support import oracles
from support.operators import OPERATORS
from support.tvm_view import tvm_view

from felixlike import _tvm
from felixlike.errors import UnsupportedSketch
from felixlike.features import formulas
from felixlike.frontend import Task, make_task
from felixlike.frontend.constants import PACKING
from felixlike.hardware import resolve_target
from felixlike.measure.packing import cut
from felixlike.symbolic import Sketch, concrete_nest, sketches
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.program import Index

NAMED = (
    "dense_bias_relu",
    "batch_matmul",
    "matvec",
    "conv1d",
    "conv2d_3x3",
    "conv2d_1x1",
    "conv2d_nhwc",
    "conv2d_grouped",
    "depthwise_strided",
    "conv3d",
)


def task_of(name: str) -> Task:
    return make_task(OPERATORS[name](small_size=True), resolve_target("cpu"), name=name, constants=[1])


@cache
def symbolic_sketches_of(name: str) -> list[Sketch]:
    symbolic_sketches = [sketch for sketch in sketches(task_of(name)) if sketch.is_symbolic]
    assert symbolic_sketches
    return symbolic_sketches


@pytest.mark.parametrize("name", NAMED)
def test_programs_and_views_equal_tvms(name: str) -> None:
    packs, shares = 0, []
    for sketch in symbolic_sketches_of(name):
        points = sketch.sample(2 if name == "conv3d" else 6, seed=5)
        for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
            schedule = sketch.schedule(point)
            packs += PACKING in schedule.mod.script()
            locations = tuple(point[i] for i in sketch.location_columns)
            values = dict(zip([v.name for v in sketch.variables], point, strict=True))
            program = sketch.structure(locations).program
            assert concrete_nest(program, values) == oracles.tvm_nest(schedule), (sketch.index, point)
            theirs = oracles.tvm_features(sketch, schedule)
            assert ours.shape == theirs.shape
            known = ~np.isnan(ours)
            assert np.isclose(ours, theirs, rtol=1e-6, atol=1e-9)[known].all(), (sketch.index, point)
            shares.append(known[theirs != 0].mean())
    assert packs
    assert np.mean(shares) > (0.75 if name == "conv2d_grouped" else 0.8)


@pytest.mark.parametrize("name", NAMED)
def test_formulas_equal_brute_force_counts(name: str) -> None:
    for sketch in symbolic_sketches_of(name):
        assert equal_counts(sketch, sketch.sample(4, seed=11)) > 0


def test_the_innermost_loop_reads_neighbouring_elements() -> None:
    """The innermost loop that moves the weight of a dense layer reads it in steps of one."""
    sketch = symbolic_sketches_of("dense_bias_relu")[0]
    (weight,) = [buffer for buffer in sketch.program.buffers if buffer.origin is not None]
    assert (weight.name, str(weight.shape[0]), weight.internal) == ("W_global", "120", False)
    assert weight.origin is not None
    assert [str(extent) for extent in weight.origin.shape] == ["20", "6"]
    (access,) = [a for store, _ in sketch.program.stores() for a in store.accesses if a.buffer is weight]
    names = [str(variable) for variable, _ in access.indices[0].strides]
    assert names == ["j_0", "j_1", "k_0", "j_2", "k_1", "j_3"]
    assert [str(step) for _, step in access.indices[0].strides][-2:] == ["j.3", "1"]
    assert all(str(store.block) != "W_global" for store, _ in sketch.program.stores())


@pytest.mark.parametrize("name", NAMED)
def test_elements_are_where_tvm_packs_them(name: str) -> None:
    """TVM's packing, run on numbered elements, puts each where the program's index expects it."""
    sketch = symbolic_sketches_of(name)[1]
    for point in sketch.sample(3, seed=2).tolist():
        values = dict(zip([v.name for v in sketch.variables], point, strict=True))
        program = sketch.structure(tuple(point[i] for i in sketch.location_columns)).program
        (store, path, access) = next(
            (s, path, a) for s, path in program.stores() for a in s.accesses if a.buffer.origin is not None
        )
        assert access.buffer.origin is not None
        shape = [int(extent.value) for extent in access.buffer.origin.shape]
        numbered = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        _, (packing,) = cut(sketch.schedule(point).mod["main"])
        packed = _tvm.runtime.empty(packing.shape, packing.dtype)
        library = _tvm.tvm.compile(packing.function.with_attr("global_symbol", "pack"))
        library["pack"](_tvm.runtime.tensor(numbered), packed)
        moving = [loop for loop in path if access.uses(loop.variable)]
        extents = [round(evaluate(loop.extent, values)) for loop in moving]
        iterations = np.indices(extents).reshape(len(extents), -1)
        loops = dict(zip([loop.variable for loop in moving], iterations, strict=True))
        old = [_positions(index, loops, values) for index in access.written]
        (new,) = [_positions(index, loops, values) for index in access.indices]
        assert sorted(new) == list(range(numbered.size)), store.block
        assert (packed.numpy().ravel()[new] == numbered[tuple(old)]).all(), (point, store.block)


def _positions(index: Index, loops: dict[Any, Any], values: dict[str, int]) -> Any:
    count = len(next(iter(loops.values())))
    total = np.full(count, round(evaluate(index.offset, values)))
    for variable, stride in index.strides:
        total = total + loops[variable] * round(evaluate(stride, values))
    return total


def test_unsupported_layouts_are_refused() -> None:
    """Reductions that run in parallel fuse loops over two dimensions of the constant, which is not supported."""
    te = _tvm.te
    x, w = te.placeholder((6, 8), name="x"), te.placeholder((2, 6, 8), name="w")
    a, b = te.reduce_axis((0, 6), name="a"), te.reduce_axis((0, 8), name="b")
    func = te.create_prim_func([x, w, te.compute((2,), lambda i: te.sum(x[a, b] * w[i, a, b], axis=[a, b]), name="y")])
    task = make_task(func, resolve_target("cpu"), name="product", constants=[1])
    assert task.layout_free == ("w",)
    all_sketches = sketches(task)
    unsupported = [sketch for sketch in all_sketches if not sketch.is_symbolic]
    assert any("layout: w " in sketch.reason and "dimensions" in sketch.reason for sketch in unsupported)
    assert len(unsupported) < len(all_sketches)
    with pytest.raises(UnsupportedSketch) as caught:
        unsupported[0].structure(())
    assert caught.value.where == "layout"
    assert "w " in caught.value.what
    assert all(len(sketch.sample(2, seed=0)) == 2 for sketch in all_sketches)
