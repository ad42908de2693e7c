"""Remainders by powers of two in addresses are right although LLVM vectorizes the loops around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.hidden_masks import hidden_masks


def _repeated(rows: int, columns: int, times: int, dtype: str) -> Any:
    """Return y[a, b, c] = x[a % 3, b % rows, c] for b below rows · times, as plain loops."""

    def size(value: int) -> Any:
        return _tvm.tirx.const(value, dtype)

    x = _tvm.te.placeholder((size(3), size(rows), size(columns)), "float32", name="x")
    shape = (size(18), size(rows * times), size(columns))
    y = _tvm.te.compute(shape, lambda a, b, c: x[a % size(3), b % size(rows), c], name="y")
    return _tvm.IRModule({"main": _tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "main")})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "columns", "times"), [(4, 5, 4), (8, 5, 4), (4, 7, 4), (2, 3, 16)])
def test_rows_are_repeated(rows: int, columns: int, times: int, dtype: str) -> None:
    target = _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu()})
    executable = codegen.compile_primfuncs(_repeated(rows, columns, times, dtype), target)
    x = np.random.default_rng(0).normal(size=(3, rows, columns)).astype("float32")
    y = _tvm.runtime.tensor(np.zeros((18, rows * times, columns), "float32"))
    executable.jit()["main"](_tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.tile(x, (6, times, 1)))


def test_masks_of_buffers_in_registers_are_unchanged() -> None:
    """LLVM keeps a buffer in registers only if it knows all indices."""
    i = _tvm.tirx.Var("i", "int32")
    buffer = _tvm.tirx.decl_buffer((4,), "float32", "c", scope="local")
    store = _tvm.tirx.BufferStore(buffer, _tvm.tirx.const(0, "float32"), [_tvm.tirx.bitwise_and(i, 3)])
    loop = _tvm.tirx.For(i, _tvm.tirx.const(0, "int32"), _tvm.tirx.const(8, "int32"), _tvm.tirx.ForKind.SERIAL, store)
    body = _tvm.tirx.SeqStmt([_tvm.tirx.AllocBuffer(buffer), loop])
    func = hidden_masks(_tvm.IRModule({"main": _tvm.PrimFunc([], body)}))["main"]
    assert not [c for c in _tvm.found(func.body, _tvm.ir.Call) if "hidden" in str(c)]
