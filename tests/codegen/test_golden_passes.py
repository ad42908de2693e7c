"""Every pass on a minimal function, with its text before and after in a golden file that is also documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from texts import before_and_after

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import (
    Asynchronous,
    Blocks,
    Columns,
    Guard,
    Keys,
    Pairs,
    Peel,
    Prefetch,
    Row,
    Skip,
    Steps,
    TensorCores,
    Tile,
    Transpose,
)
from felixlike.codegen.pipeline import CPU_PASSES, GPU_PASSES

BY_NAME = {each_pass.name: each_pass for each_pass in (*CPU_PASSES, *GPU_PASSES)}


def _schedule(*tensors: Any) -> Any:
    """Return a schedule of the function from the inputs to the last tensor."""
    func = _tvm.te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return _tvm.Schedule(_tvm.IRModule({"main": func}))


def _inputs(**shapes: tuple[int, ...]) -> list[Any]:
    return [_tvm.te.placeholder(shape, name=name) for name, shape in shapes.items()]


def _lanes(tensors: list[Any], *, lanes: int = 4) -> tuple[Any, Any, Any]:
    """Return a schedule of one loop split into vectors, the loop over vectors, and the loop over lanes."""
    schedule = _schedule(*tensors)
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    outer, lane = schedule.split(loop, [None, lanes])
    return schedule, outer, lane


def _elements(value: Callable[[Any], Any], *, dtype: str = "float32") -> Any:
    """Return a schedule of y[i] = value(x[i])."""
    x = _tvm.te.placeholder((8,), dtype, name="x")
    return _schedule(x, _tvm.te.compute((8,), lambda i: value(x[i]), name="y"))


def plain_conditions() -> Any:
    """A choice by a condition that TVM's `where` compares with 0."""
    x, z = (_tvm.te.placeholder((8,), "int64", name=name) for name in "xz")
    less = _tvm.te.compute((8,), lambda i: x[i] < z[i], name="less")
    schedule = _schedule(x, z, _tvm.topi.where(less, x, z))
    schedule.compute_inline(schedule.get_sblock("less"))
    return schedule


def keep_rounding() -> Any:
    """A difference that is one of its terms, for real numbers."""
    x, z = _inputs(x=(8,), z=(8,))
    total = _tvm.te.compute((8,), lambda i: x[i] + z[i], name="total")
    schedule = _schedule(x, z, _tvm.te.compute((8,), lambda i: total[i] - x[i], name="y"))
    schedule.compute_inline(schedule.get_sblock("total"))
    return schedule


def _hashed(dtype: str) -> Any:
    return _elements(lambda x: _tvm.tirx.floormod(x * 1000003 + 1, _tvm.tirx.const(97, dtype)), dtype=dtype)


def wrap_integers() -> Any:
    """A hash of each element."""
    return _hashed("int32")


def wrap_integers_on_gpus() -> Any:
    """A hash of each element."""
    return _hashed("int64")


def from_infinity() -> Any:
    """The largest of a row."""
    (x,) = _inputs(x=(4, 8))
    k = _tvm.te.reduce_axis((0, 8), name="k")
    return _schedule(x, _tvm.te.compute((4,), lambda i: _tvm.te.max(x[i, k], axis=k), name="y"))


def skip_hidden_keys() -> Any:
    """The largest score of each query, of which a causal mask hides the keys behind it. Tiles have four queries."""
    (scores,) = _inputs(scores=(16, 16))
    masked = _tvm.te.compute(
        (16, 16), lambda j, i: _tvm.tirx.Select(j <= i, scores[j, i], _tvm.tirx.const(-math.inf, "float32")), "masked"
    )
    j = _tvm.te.reduce_axis((0, 16), name="j")
    schedule = _schedule(scores, _tvm.te.compute((16,), lambda i: _tvm.te.max(masked[j, i], axis=j), name="largest"))
    largest = schedule.get_sblock("largest")
    queries, keys = schedule.get_loops(largest)
    tile, query = schedule.split(queries, [None, 4])
    schedule.reorder(tile, keys, query)
    schedule.compute_at(schedule.get_sblock("masked"), tile)
    for loop in (keys, schedule.get_loops(schedule.get_sblock("masked"))[1]):
        Keys().put(schedule, loop)
    schedule.decompose_reduction(largest, keys)
    return schedule


def skip_padding() -> Any:
    """A convolution along one dimension, whose input is padded by one row at either end."""
    x, w = _inputs(x=(7, 8), w=(3, 8))
    padded = _tvm.te.compute(
        (9, 8),
        lambda i, c: _tvm.tirx.if_then_else(_tvm.tirx.all(i >= 1, i < 8), x[i - 1, c], 0.0),
        name="padded",
    )
    r, c = _tvm.te.reduce_axis((0, 3), name="r"), _tvm.te.reduce_axis((0, 8), name="c")
    y = _tvm.te.compute((7,), lambda i: _tvm.te.sum(padded[i + r, c] * w[r, c], axis=[r, c]), name="y")
    schedule = _schedule(x, w, y)
    block = schedule.get_sblock("y")
    _, tap, _ = schedule.get_loops(block)
    Skip().put(schedule, tap)
    schedule.decompose_reduction(block, tap)
    return schedule


def transpose() -> Any:
    """A square of 4 rows, written along its columns."""
    (x,) = _inputs(x=(4, 4))
    schedule = _schedule(x, _tvm.te.compute((4, 4), lambda c, i: x[i, c], name="y"))
    Transpose(4).put(schedule, schedule.get_loops(schedule.get_sblock("y"))[0])
    return schedule


def first_and_last() -> Any:
    """A product whose sums are formed in 3 blocks, with its epilogue."""
    a, b = _inputs(a=(2, 15), b=(15, 8))
    k = _tvm.te.reduce_axis((0, 15), name="k")
    s = _tvm.te.compute((2, 8), lambda i, j: _tvm.te.sum(a[i, k] * b[k, j], axis=k), name="s")
    schedule = _schedule(a, b, _tvm.te.compute((2, 8), lambda i, j: _tvm.te.max(s[i, j], 0.0), name="y"))
    block, last = schedule.get_sblock("s"), schedule.get_sblock("y")
    i, j, k_loop = schedule.get_loops(block)
    j_0, j_1 = schedule.split(j, [None, 4])
    k_0, k_1 = schedule.split(k_loop, [None, 5])
    schedule.reorder(j_0, k_0, k_1, i, j_1)
    schedule.reverse_compute_at(last, j_0)
    schedule.vectorize(schedule.get_loops(last)[-1])
    schedule.unroll(i)
    schedule.vectorize(j_1)
    Blocks().put(schedule, k_0)
    schedule.decompose_reduction(block, k_0)
    return schedule


def guard() -> Any:
    """Seven elements in vectors of four."""
    (x,) = _inputs(x=(7,))
    schedule, _, lane = _lanes([x, _tvm.te.compute((7,), lambda i: x[i] * 2.0, name="y")])
    schedule.vectorize(lane)
    Guard().put(schedule, lane)
    return schedule


def _tiles(steps: int, columns: int, annotation: Any) -> Any:
    """Return sums over k of tiles of two rows, with the tile in a separate buffer."""
    x, w = _inputs(x=(4, steps), w=(6, steps, columns))
    k = _tvm.te.reduce_axis((0, steps), name="k")
    y = _tvm.te.compute((6, 4, columns), lambda b, m, j: _tvm.te.sum(x[m, k] * w[b, k, j], axis=k), name="y")
    schedule = _schedule(x, w, y)
    block = schedule.get_sblock("y")
    copy = schedule.cache_write(block, 0, "global")
    packed, rows, lane, step = schedule.get_loops(block)
    tile, row = schedule.split(rows, [None, 2])
    schedule.reorder(packed, tile, step, row, lane)
    schedule.reverse_compute_at(copy, tile)
    schedule.vectorize(lane)
    for loop in (row, schedule.get_loops(copy)[2]):
        schedule.unroll(loop)
    annotation.put(schedule, step)
    schedule.decompose_reduction(block, step)
    return schedule


def tile_rows() -> Any:
    """Tiles of two rows of 128 sums, more than TVM keeps on the stack."""
    return _tiles(64, 128, Tile())


def prefetch() -> Any:
    """Packed weights, of which the next block is fetched while two tiles use one."""
    return _tiles(2048, 16, Prefetch())


def peel_tails() -> Any:
    """Eleven elements in vectors of four, the last three of which are two and one."""
    (x,) = _inputs(x=(11,))
    schedule, outer, _ = _lanes([x, _tvm.te.compute((11,), lambda i: x[i] * 2.0, name="y")])
    Peel(11, 4).put(schedule, outer)
    return schedule


def peel_columns() -> Any:
    """Thirteen sums, in groups of two vectors of four."""
    (x,) = _inputs(x=(5, 13))
    k = _tvm.te.reduce_axis((0, 5), name="k")
    schedule = _schedule(x, _tvm.te.compute((13,), lambda c: _tvm.te.sum(x[k, c], axis=k), name="y"))
    block = schedule.get_sblock("y")
    column, k_loop = schedule.get_loops(block)
    group, vector, lane = schedule.split(column, [None, 2, 4])
    schedule.reorder(group, k_loop, vector, lane)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, k_loop)
    Columns(13, 4).put(schedule, schedule.get_loops(block)[1])
    return schedule


def rows_in_vectors() -> Any:
    """Sums of rows of a length that a call decides."""
    te, n = _tvm.te, _tvm.tirx.Var("n", "int64")
    x, k = te.placeholder((3, n), name="x"), te.reduce_axis((0, n), name="k")
    schedule = _schedule(x, te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="y"))
    block = schedule.get_sblock("y")
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    Row(4).put(schedule, schedule.get_loops(block)[1])
    return schedule


def shared_steps() -> Any:
    """Steps that cores share."""
    (x,) = _inputs(x=(4, 8))
    schedule = _schedule(x, _tvm.te.compute((4, 8), lambda t, i: x[t, i] + 1.0, name="y"))
    step, tile = schedule.get_loops(schedule.get_sblock("y"))
    schedule.parallel(tile)
    Steps().put(schedule, step)
    return schedule


def share_reciprocals() -> Any:
    """Rows divided by a number each."""
    x, y = _inputs(x=(4, 32), y=(4,))
    return _schedule(x, y, _tvm.te.compute((4, 32), lambda i, j: x[i, j] / y[i], name="z"))


def write_out_halves() -> Any:
    """A bfloat16 that becomes a float32."""
    return _elements(lambda x: x.astype("float32"), dtype="bfloat16")


def choose_lazily() -> Any:
    """A row that is continued with zeros."""
    (x,), zero = _inputs(x=(40,)), _tvm.tirx.const(0, "float32")
    padded = _tvm.te.compute((64,), lambda i: _tvm.tirx.Select(i < 40, x[_tvm.te.min(i, 39)], zero), name="y")
    schedule = _schedule(x, padded)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[0])
    return schedule


def keep_nan() -> Any:
    """The larger of two elements."""
    x, z = _inputs(x=(8,), z=(8,))
    return _schedule(x, z, _tvm.te.compute((8,), lambda i: _tvm.te.max(x[i], z[i]), name="y"))


def vectorise_math() -> Any:
    """An exponential."""
    return _elements(_tvm.tirx.exp)


def only_marked_are_asynchronous() -> Any:
    """Two pipelines, one of which asks for asynchronous copies."""
    (x,) = _inputs(x=(8,))
    y = _tvm.te.compute((8,), lambda i: x[i] + 1.0, name="y")
    schedule = _schedule(x, y, _tvm.te.compute((8,), lambda i: y[i] * 2.0, name="z"))
    for name in ("y", "z"):
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        schedule.annotate(loop, "software_pipeline_async_stages", [0])
    Asynchronous().put(schedule, loop)
    return schedule


def multiply_pairs() -> Any:
    """A row times eight columns in two vectors, with the row's pairs in a copy."""
    (a,), b = _inputs(a=(6,)), _tvm.te.placeholder((3, 8, 2), "bfloat16", name="b")
    k = _tvm.te.reduce_axis((0, 6), name="k")
    y = _tvm.te.compute((8,), lambda j: _tvm.te.sum(a[k] * b[k // 2, j, k % 2].astype("float32"), axis=k), name="y")
    schedule = _schedule(a, b, y)
    block = schedule.get_sblock("y")
    copy = schedule.cache_read(block, 0, "global")
    schedule.unsafe_set_dtype(copy, 0, "bfloat16")
    column, step = schedule.get_loops(block)
    (vector, lane), (step, pair) = schedule.split(column, [None, 4]), schedule.split(step, [None, 2])
    schedule.reorder(step, vector, lane, pair)
    schedule.vectorize(lane)
    Pairs(3).put(schedule, pair)
    schedule.decompose_reduction(block, step)
    return schedule


def copies_in_vectors() -> Any:
    """A copy of rows of 8 channels with zeros before them."""
    x = _inputs(x=(2, 8))[0]
    zero = _tvm.tirx.const(0, "float32")
    padded = _tvm.te.compute((3, 8), lambda y, c: _tvm.tirx.if_then_else(y >= 1, x[y - 1, c], zero), name="y")
    module = _schedule(x, padded).mod
    return SimpleNamespace(mod=_tvm.map_functions(module, codegen.without_blocks))


def tensor_cores() -> Any:
    """A product of 16 × 8 by one warp: two rows and two columns a thread."""
    a, b = _inputs(a=(16, 16), b=(16, 8))
    k = _tvm.te.reduce_axis((0, 16), name="k")
    y = _tvm.te.compute((16, 8), lambda i, j: _tvm.te.sum(a[i, k] * b[k, j], axis=k), name="y")
    schedule = _schedule(a, b, y)
    block = schedule.get_sblock("y")
    i, j, step = schedule.get_loops(block)
    (g, row), (t, column) = schedule.split(i, [8, 2]), schedule.split(j, [4, 2])
    schedule.reorder(g, t, step, row, column)
    schedule.bind(schedule.fuse(g, t), "threadIdx.x")
    TensorCores(1).put(schedule, step)
    schedule.decompose_reduction(block, step)
    return schedule


def unaligned_parameters() -> Any:
    """A function that loads vectors from its parameters."""
    schedule, _, lane = _lanes(
        [*(inputs := _inputs(x=(8,))), _tvm.te.compute((8,), lambda i: inputs[0][i] + 1.0, name="y")]
    )
    schedule.vectorize(lane)
    return schedule


MINIMAL: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        plain_conditions,
        choose_lazily,
        keep_rounding,
        wrap_integers,
        from_infinity,
        skip_hidden_keys,
        skip_padding,
        transpose,
        first_and_last,
        guard,
        tile_rows,
        prefetch,
        multiply_pairs,
        peel_tails,
        peel_columns,
        rows_in_vectors,
        shared_steps,
        copies_in_vectors,
        share_reciprocals,
        write_out_halves,
        keep_nan,
        vectorise_math,
        unaligned_parameters,
        wrap_integers_on_gpus,
        only_marked_are_asynchronous,
        tensor_cores,
    )
}


def test_every_pass_has_a_text() -> None:
    assert list(MINIMAL) == list(BY_NAME)


@pytest.mark.parametrize("name", MINIMAL)
def test_text_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    before = MINIMAL[name]().mod
    after = BY_NAME[name].run(before)
    assert not _tvm.structural_equal(before, after)
    golden(f"passes/{name}", before_and_after(MINIMAL[name].__doc__ or "", before, after))
