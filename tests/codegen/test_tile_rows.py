"""Tiles in rows: the same values and the same fetches, of buffers that TVM keeps on the stack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Prefetch
from felixlike.codegen.passes import prefetch, tile_rows


def _product(tile: int, *, vectors: int = 3, marked: bool = True, unrolled: bool = True) -> Any:
    """Y[m, j] = Σ_k x[m, k] · w[j / (16 · vectors), k, …] in tiles of rows and vectors of 16."""
    width = 16 * vectors
    x, w = _tvm.te.placeholder((2 * tile, 512), name="x"), _tvm.te.placeholder((6, 512, vectors, 16), name="w")
    k = _tvm.te.reduce_axis((0, 512), name="k")
    y = _tvm.te.compute(
        (2 * tile, 6 * width),
        lambda m, j: _tvm.te.sum(x[m, k] * w[j // width, k, j % width // 16, j % 16], axis=k),
        name="y",
    )
    func = _tvm.te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block = schedule.get_sblock("y")
    last = schedule.cache_write(block, 0, "global")
    row, column, step = schedule.get_loops(block)
    outer, row = schedule.split(row, [None, tile])
    packed, vector, lane = schedule.split(column, [None, vectors, 16])
    schedule.reorder(packed, outer, step, row, vector, lane)
    schedule.reverse_compute_at(last, outer)
    schedule.vectorize(lane)
    written = schedule.get_loops(last)[2] if unrolled else None
    for loop in [row, vector, *([] if written is None else [written])]:
        schedule.unroll(loop)
    if marked:
        Prefetch().put(schedule, step)
    schedule.decompose_reduction(block, step)
    return schedule.mod


def _allocated(module: Any) -> list[int]:
    """Bytes of each buffer that a module's function allocates."""
    found = _tvm.found(plain_loops.without_blocks(module["main"]).body, _tvm.tirx.AllocBuffer)
    return [4 * math.prod(int(extent) for extent in alloc.buffer.shape) for alloc in found]


def test_a_large_tile_has_a_buffer_a_row() -> None:
    assert _allocated(_product(8)) == [8 * 192]
    assert _allocated(tile_rows(_product(8))) == [192] * 8


@pytest.mark.parametrize(("tile", "unrolled"), [(5, True), (8, False)])
def test_small_tiles_and_tiles_that_a_loop_reaches_stay(tile: int, unrolled: bool) -> None:
    module = _product(tile, unrolled=unrolled)
    assert _allocated(tile_rows(module)) == _allocated(module)


def test_every_line_is_fetched_once() -> None:
    """48 floats a step, shared by two passes over the rows: 24, in two lines; as for a tile that is small anyway."""
    fetches = [_tvm.found(prefetch(tile_rows(_product(tile)))["main"].body, _tvm.tirx.Evaluate) for tile in (5, 8)]
    assert [len(found) for found in fetches] == [2, 2]


@pytest.mark.parametrize("tile", [5, 8])
def test_values(tile: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((2 * tile, 512), (6, 512, 3, 16)))
    y = _tvm.runtime.tensor(np.full((2 * tile, 288), np.nan, "float32"))
    executable = codegen.compile_primfuncs(_product(tile), _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(x), _tvm.runtime.tensor(w), y)
    expected = np.einsum("mk,bkvl->mbvl", x, w).reshape(2 * tile, -1)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_functions_without_marks_stay() -> None:
    module = _product(8, marked=False)
    assert tile_rows(module)["main"].same_as(module["main"])
