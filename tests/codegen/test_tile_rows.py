"""`tile_rows` splits tiles into rows that fit on TVM's stack, with the same values and the same prefetches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from schedules import as_module

from felixlike import _tvm, codegen
from felixlike._tvm import topi
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Prefetch
from felixlike.codegen.passes import prefetch, tile_rows
from felixlike.frontend.rewrites.winograd import Plan, Tiled, transformed_input
from felixlike.spaces.cpu.tile_cases import case_by_case


def _product(tile: int, *, vectors: int = 3, annotated: bool = True, unrolled: bool = True) -> Any:
    """Return Y[m, j] = Σ_k x[m, k] · w[j / (16 · vectors), k, …] in tiles of rows and vectors of 16."""
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
    copy = schedule.cache_write(block, 0, "global")
    row, column, step = schedule.get_loops(block)
    outer, row = schedule.split(row, [None, tile])
    packed, vector, lane = schedule.split(column, [None, vectors, 16])
    schedule.reorder(packed, outer, step, row, vector, lane)
    schedule.reverse_compute_at(copy, outer)
    schedule.vectorize(lane)
    written = schedule.get_loops(copy)[2] if unrolled else None
    for loop in [row, vector, *([] if written is None else [written])]:
        schedule.unroll(loop)
    if annotated:
        Prefetch().put(schedule, step)
    schedule.decompose_reduction(block, step)
    return schedule.mod


def _allocated_bytes(module: Any) -> list[int]:
    """Return the bytes of each buffer that a module's function allocates."""
    allocations = _tvm.found(plain_loops.without_blocks(module["main"]).body, _tvm.tirx.AllocBuffer)
    return [4 * math.prod(int(extent) for extent in alloc.buffer.shape) for alloc in allocations]


def test_a_large_tile_has_one_buffer_per_row() -> None:
    assert _allocated_bytes(_product(8)) == [8 * 192]
    assert _allocated_bytes(tile_rows(_product(8))) == [192] * 8


@pytest.mark.parametrize(("tile", "unrolled"), [(5, True), (8, False)])
def test_small_tiles_and_tiles_accessed_in_a_loop_are_unchanged(tile: int, unrolled: bool) -> None:
    module = _product(tile, unrolled=unrolled)
    assert _allocated_bytes(tile_rows(module)) == _allocated_bytes(module)


def test_every_line_is_fetched_once() -> None:
    """A step has 48 floats, shared by two passes over the rows: each fetches 24, in two lines, as for a small tile."""
    fetches = [_tvm.found(prefetch(tile_rows(_product(tile)))["main"].body, _tvm.tirx.Evaluate) for tile in (5, 8)]
    assert [len(statements) for statements in fetches] == [2, 2]


@pytest.mark.parametrize("tile", [5, 8])
def test_values_are_correct(tile: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((2 * tile, 512), (6, 512, 3, 16)))
    y = _tvm.runtime.tensor(np.full((2 * tile, 288), np.nan, "float32"))
    executable = codegen.compile_primfuncs(_product(tile), _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(x), _tvm.runtime.tensor(w), y)
    expected = np.einsum("mk,bkvl->mbvl", x, w).reshape(2 * tile, -1)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)


def _transformation() -> Any:
    """Return a schedule's module that transforms tiles of 6 × 6 places in vectors of 16, half of the channels."""
    plan = Plan(1, 32, 32, (), (Tiled(size=8, output=8, taps=3, padding=1, tile=4),) * 2)
    x = _tvm.te.placeholder((1, 8, 8, 32), name="X")
    (schedule,) = case_by_case(_tvm.Schedule(as_module(_tvm.te.create_prim_func([x, transformed_input(x, plan)]))), 16)
    return schedule.mod


def test_a_tile_of_several_dimensions_has_one_buffer_per_row() -> None:
    assert 36 * 64 in _allocated_bytes(_transformation())
    rows = _allocated_bytes(tile_rows(_transformation()))
    assert rows.count(64) == 36
    assert 36 * 64 not in rows


def test_a_tile_to_which_a_pointer_leads_is_unchanged() -> None:
    func = plain_loops.without_blocks(_transformation()["main"])
    (tile,) = (a.buffer for a in _tvm.found(func.body, _tvm.tirx.AllocBuffer) if math.prod(a.buffer.shape) == 36 * 16)
    pointer = _tvm.tirx.Evaluate(_tvm.tirx.address_of(tile[(0,) * len(tile.shape)]))
    module = _tvm.IRModule({"main": func.with_body(_tvm.tirx.stmt_seq(pointer, func.body))})
    assert 36 * 64 in _allocated_bytes(tile_rows(module))


def test_functions_without_unrolled_loops_are_unchanged() -> None:
    x = _tvm.te.placeholder((8, 8), name="x")
    module = as_module(_tvm.te.create_prim_func([x, topi.sum(topi.exp(x), 1)]))
    assert tile_rows(module)["main"].same_as(module["main"])
