"""`prefetch` fetches each line of the next block once, and does not change values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expressions import number

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Matrix, Narrow, Prefetch
from felixlike.codegen.passes import prefetch

_LANES, _LINE = 16, 16  # elements


def _product(
    rows: int, steps: int, blocks: int, *, marked: bool = True, narrow: bool = False, matrix: bool = False
) -> Any:
    """Return y[m, b, l] = Σ_k x[m, k] · w[b, k, l], with w packed in blocks of vectors that are used for all rows."""
    x, w = _tvm.te.placeholder((rows, steps), name="x"), _tvm.te.placeholder((blocks, steps, _LANES), name="w")
    k = _tvm.te.reduce_axis((0, steps), name="k")
    y = _tvm.te.compute(
        (rows, blocks, _LANES), lambda m, b, lane: _tvm.te.sum(x[m, k] * w[b, k, lane], axis=k), name="y"
    )
    func = _tvm.te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block = schedule.get_sblock("y")
    row, packed, lane, step = schedule.get_loops(block)
    schedule.reorder(packed, row, step, lane)
    schedule.vectorize(lane)
    schedule.reverse_compute_at(schedule.cache_write(block, 0, "global"), row)
    if marked:
        Prefetch().put(schedule, step)
    if narrow:
        Narrow(3).put(schedule, step)
    if matrix:
        Matrix().put(schedule, lane)
    schedule.decompose_reduction(block, step)
    return schedule.mod


@pytest.mark.parametrize(("rows", "steps"), [(2, 2048), (3, 2048), (7, 1030), (16, 1024)])
def test_the_next_block_is_fetched_completely(rows: int, steps: int) -> None:
    """The passes over all rows together fetch the next block and few elements beyond it."""
    loops = _tvm.found(prefetch(_product(rows, steps, 32))["main"].body, _tvm.tirx.For)
    (loop,) = [f for f in loops if _tvm.found(f.body, _tvm.tirx.Evaluate) and str(f.loop_var.name) == "k"]
    indices = [s.value.args[0].args[0].indices[-1] for s in _tvm.found(loop.body, _tvm.tirx.Evaluate)]
    fetched = [
        number(index, {"b": 3, "m": row, "k": step})
        for row in range(rows)
        for step in range(steps)
        for index in indices
    ]
    block = steps * _LANES
    assert fetched[0] == 4 * block
    assert np.all((np.diff(fetched) >= 0) & (np.diff(fetched) <= _LINE))
    assert 5 * block - _LINE <= fetched[-1] <= 5 * block + rows * steps


def test_narrow_weights_that_are_read_once_are_fetched_at_a_distance() -> None:
    (loop,) = [
        loop
        for loop in _tvm.found(prefetch(_product(1, 1024, 32, narrow=True))["main"].body, _tvm.tirx.For)
        if str(loop.loop_var.name) == "k" and _tvm.found(loop.body, _tvm.tirx.Evaluate)
    ]
    (call,) = [statement.value for statement in _tvm.found(loop.body, _tvm.tirx.Evaluate)]
    index = call.args[0].args[0].indices[-1]
    for block, step in ((0, 0), (0, 5), (3, 7)):
        read = (block * 1024 + step) * _LANES
        assert number(index, {"b": block, "m": 0, "k": step}) == read + 1024 // 4
    assert not loop.annotations
    plain = prefetch(_product(1, 1024, 32))["main"]
    assert not _tvm.found(plain.body, _tvm.tirx.Evaluate)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_matrices_that_are_read_once_or_twice_are_fetched_at_a_distance(rows: int) -> None:
    """In each pass, all lines of a step; with more passes, lines of the next block."""
    loops = _tvm.found(prefetch(_product(rows, 1024, 32, matrix=True))["main"].body, _tvm.tirx.For)
    (loop,) = [f for f in loops if str(f.loop_var.name) == "k" and _tvm.found(f.body, _tvm.tirx.Evaluate)]
    (call,) = [statement.value for statement in _tvm.found(loop.body, _tvm.tirx.Evaluate)]
    index, read = call.args[0].args[0].indices[-1], (3 * 1024 + 7) * _LANES
    last = number(index, {"b": 3, "m": rows - 1, "k": 7})
    assert (last == read + 2**14 // 4) == (rows < 3)


def test_values_are_correct() -> None:
    rows, steps, blocks = 5, 1024, 9
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, steps)).astype("float32")
    w = rng.uniform(-1, 1, (blocks, steps, _LANES)).astype("float32")
    y = _tvm.runtime.tensor(np.full((rows, blocks, _LANES), np.nan, "float32"))
    executable = codegen.compile_primfuncs(_product(rows, steps, blocks), _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(x), _tvm.runtime.tensor(w), y)
    np.testing.assert_allclose(y.numpy(), np.einsum("mk,bkl->mbl", x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "steps", "marked"), [(4, 64, True), (1, 2048, True), (4, 2048, False)])
def test_small_single_use_or_unannotated_blocks_are_not_fetched(rows: int, steps: int, marked: bool) -> None:
    module = prefetch(_product(rows, steps, 8, marked=marked))
    assert not _tvm.found(module["main"].body, _tvm.tirx.Evaluate)
