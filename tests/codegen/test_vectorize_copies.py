"""`copies_in_vectors` vectorizes short innermost loops of padding copies, and their values remain equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schedules import run

from felixlike import _tvm
from felixlike.codegen import without_blocks
from felixlike.codegen.passes import copies_in_vectors


def _copy(channels: int, element: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """Return P[y, c], x[5, 64] with a row of zeros before it, or of other elements, for some channels."""
    x = _tvm.te.placeholder((5, 64), "float32", name="x")
    zero = _tvm.tirx.const(0, "float32")

    def default(rows: Any, y: Any, c: Any) -> Any:
        return _tvm.tirx.if_then_else(y >= 1, rows[y - 1, c], zero)

    read = element or default
    copied = _tvm.te.compute((6, channels), lambda y, c: read(x, y, c), name="P")
    func = _tvm.te.create_prim_func([x, copied]).with_attr("global_symbol", "main")
    return _tvm.IRModule({"main": without_blocks(func)})


def _vectors(module: Any) -> int:
    loops = _tvm.found(copies_in_vectors(module)["main"].body, _tvm.tirx.For)
    return sum(_tvm.tirx.ForKind(loop.kind) == _tvm.tirx.ForKind.VECTORIZED for loop in loops)


@pytest.mark.parametrize("channels", [8, 16, 32])
def test_short_copies_are_vectors_with_equal_values(channels: int) -> None:
    module = _copy(channels)
    assert _vectors(module) == 1
    x = np.random.default_rng(0).standard_normal((5, 64)).astype("float32")
    result = run(copies_in_vectors(module), [x, np.ones((6, channels), "float32")])[1]
    np.testing.assert_array_equal(result, np.concatenate([np.zeros((1, channels), "float32"), x[:, :channels]]))


@pytest.mark.parametrize(
    "module",
    [
        _copy(24),
        _copy(16, lambda x, y, c: x[y - 1, c]),
        _copy(16, lambda x, y, c: _tvm.tirx.if_then_else(c >= 1, x[y - 1, c - 1], _tvm.tirx.const(0, "float32"))),
        _copy(16, lambda x, y, c: _tvm.tirx.if_then_else(y >= 1, x[y - 1, 2 * c], _tvm.tirx.const(0, "float32"))),
        _copy(16, lambda x, y, c: _tvm.tirx.if_then_else(y >= 1, x[y - 1, c], _tvm.tirx.const(1, "float32"))),
    ],
    ids=["no whole vectors", "no padding", "padded along the loop", "strided", "other than zero"],
)
def test_other_loops_are_unchanged(module: Any) -> None:
    assert _vectors(module) == 0
