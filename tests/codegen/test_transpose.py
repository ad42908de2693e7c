"""`transpose` transposes tiles in registers: same values, without scattered vectors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Transpose
from felixlike.codegen.passes import transpose
from felixlike.measure.check.guarded_buffers import GuardedBuffer


def _write_back(columns: int, rows: int, lanes: int, *, annotated: bool = True, rows_last: bool = True) -> Any:
    """Return Z[c, x] = 2 · T[x, c] + b[c] + R[c, x] for the tile T[x, c] = X[x, c]²."""
    x, b = _tvm.te.placeholder((rows, columns), name="x"), _tvm.te.placeholder((columns,), name="b")
    r = _tvm.te.placeholder((columns, rows), name="r")
    tile = _tvm.te.compute((rows, columns), lambda i, c: x[i, c] * x[i, c], name="tile")
    z = _tvm.te.compute((columns, rows), lambda c, i: tile[i, c] * 2.0 + b[c] + r[c, i], name="z")
    func = _tvm.te.create_prim_func([x, b, r, z]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    loops = schedule.get_loops(schedule.get_sblock("z"))
    if not rows_last:
        schedule.reorder(*reversed(loops))
    if annotated:
        Transpose(lanes).put(schedule, loops[0])
    return schedule.mod


def _shuffles(module: Any) -> int:
    return len(_tvm.found(transpose(module)["main"].body, _tvm.tirx.Shuffle))


@pytest.mark.parametrize(
    ("columns", "rows", "lanes"),
    [(16, 14, 16), (32, 7, 16), (16, 28, 16), (8, 5, 8), (12, 9, 4), (16, 4, 16), (16, 64, 16), (32, 61, 16)],
)
def test_values_are_correct(columns: int, rows: int, lanes: int) -> None:
    module = _write_back(columns, rows, lanes)
    assert _shuffles(module) > 0
    rng = np.random.default_rng(0)
    x, b, r = (rng.uniform(-1, 1, s).astype("float32") for s in ((rows, columns), (columns,), (columns, rows)))
    z = _tvm.runtime.tensor(np.full((columns, rows), np.nan, "float32"))
    executable = codegen.compile_primfuncs(module, _tvm.Target("llvm"))
    executable.jit()["main"](*map(_tvm.runtime.tensor, (x, b, r)), z)
    np.testing.assert_allclose(z.numpy(), 2 * x.T**2 + b[:, None] + r, rtol=1e-6)


def test_squares_take_a_logarithmic_number_of_steps() -> None:
    """14 rows of 16 channels are two squares of 8 rows, each with 3 · 8 exchanges and 16 extracted rows of 8."""
    assert _shuffles(_write_back(16, 14, 16)) == 2 * (3 * 8 + 16)


def test_code_does_not_grow_with_the_rows() -> None:
    """There is one square in a loop, and at most one for the remaining rows."""
    assert _shuffles(_write_back(16, 1024, 16)) == 1 * (4 * 16 + 16)
    assert _shuffles(_write_back(16, 1003, 16)) == 2 * (4 * 16 + 16)


@pytest.mark.parametrize(
    ("columns", "rows", "lanes", "rows_last"), [(16, 3, 16, True), (24, 14, 16, True), (16, 14, 16, False)]
)
def test_tiles_without_squares_are_unchanged(columns: int, rows: int, lanes: int, rows_last: bool) -> None:
    module = _write_back(columns, rows, lanes, rows_last=rows_last)
    assert _shuffles(module) == 0
    assert not any(loop.annotations for loop in _tvm.found(transpose(module)["main"].body, _tvm.tirx.For))


def _padded_copy(rows: int, before: int, after: int, kind: str) -> Any:
    """Return Z[c, x] = 2 · X[x − before, c], and 0 where X has no such row, for the first 16 of its columns."""
    x = _tvm.te.placeholder((rows, _WIDE), name="x")

    def value(c: Any, i: Any) -> Any:
        exists = {
            "after": i < rows,
            "before": i >= before,
            "both": _tvm.tirx.all(before <= i, i - before <= rows - 1),
            "columns": _tvm.tirx.all(i < rows, c < 12),
        }[kind]
        return _tvm.tirx.if_then_else(exists, x[i - before, c] * 2.0, _tvm.tirx.const(0, "float32"))

    z = _tvm.te.compute((16, before + rows + after), value, name="z")
    schedule = _tvm.Schedule(
        _tvm.IRModule({"main": _tvm.te.create_prim_func([x, z]).with_attr("global_symbol", "main")})
    )
    Transpose(16).put(schedule, schedule.get_loops(schedule.get_sblock("z"))[0])
    return schedule.mod


_WIDE = 1024
"""Columns of an input, one page."""


@pytest.mark.parametrize("kind", ["after", "before", "both", "columns"])
@pytest.mark.parametrize("rows", [3, 17, 100])
def test_rows_that_do_not_exist_are_not_read(rows: int, kind: str) -> None:
    before = 5 if kind in ("before", "both") else 0
    after = 9 if kind in ("after", "both", "columns") else 0
    module = _padded_copy(rows, before, after, kind)
    assert (_shuffles(module) > 0) == (kind != "columns")
    main = codegen.compile_primfuncs(module, _tvm.Target("llvm")).jit()["main"]
    x = GuardedBuffer((rows, _WIDE), "float32", 0, fenced=True, only_read=True)
    child = os.fork()  # which reading behind x would end
    if child == 0:
        values = np.arange(rows * _WIDE, dtype="float32").reshape(rows, _WIDE)
        x.tensor.copyfrom(values)
        z = _tvm.runtime.tensor(np.full((16, before + rows + after), np.nan, "float32"))
        main(x.tensor, z)
        columns = 12 if kind == "columns" else 16
        expected = np.zeros(z.shape, "float32")
        expected[:columns, before : before + rows] = 2 * values[:, :columns].T
        os._exit(int(not np.array_equal(z.numpy(), expected)))
    assert os.waitpid(child, 0)[1] == 0


def test_unannotated_functions_are_unchanged() -> None:
    module = _write_back(16, 14, 16, annotated=False)
    assert transpose(module)["main"].same_as(module["main"])
