"""`skip_padding` skips taps in the padding that a copy tests for, and sums remain the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from expressions import number

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Skip
from felixlike.codegen.passes import skip_padding


def _convolution(
    length: int, taps: int, *, pad: int, stride: int = 1, annotated: bool = True, copied: bool = True
) -> Any:
    """Return y[i, k] = Σ_r Σ_c P[i · stride + r, c] · w[r, c, k], with the padded copy computed by rows, or no copy."""
    out = (length + 2 * pad - taps) // stride + 1
    x, w = _tvm.te.placeholder((length, 3), name="x"), _tvm.te.placeholder((taps, 3, 5), name="w")
    padded = _tvm.te.compute(
        (length + 2 * pad, 3),
        lambda i, c: _tvm.tirx.if_then_else(_tvm.tirx.all(i >= pad, i < length + pad), x[i - pad, c], 0.0),
        name="padded",
    )
    r, c = _tvm.te.reduce_axis((0, taps), name="r"), _tvm.te.reduce_axis((0, 3), name="c")
    y = _tvm.te.compute(
        (out, 5), lambda i, k: _tvm.te.sum(padded[i * stride + r, c] * w[r, c, k], axis=[r, c]), name="y"
    )
    func = _tvm.te.create_prim_func([x, w, y]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block = schedule.get_sblock("y")
    i, k, r_loop, c_loop = schedule.get_loops(block)
    outer, inner = schedule.split(i, [None, max(d for d in range(1, 5) if out % d == 0)])
    schedule.reorder(outer, inner, r_loop, c_loop, k)
    copy = schedule.get_sblock("padded")
    if copied:
        schedule.compute_at(copy, outer)
    else:
        schedule.compute_inline(copy)
    if annotated:
        Skip().put(schedule, r_loop)
    schedule.decompose_reduction(block, r_loop)
    return schedule.mod


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(
    ("length", "taps", "pad", "stride"), [(7, 3, 1, 1), (13, 5, 4, 1), (53, 3, 1, 2), (1, 3, 1, 1)]
)
def test_values_are_correct(length: int, taps: int, pad: int, stride: int, copied: bool) -> None:
    module = _convolution(length, taps, pad=pad, stride=stride, copied=copied)
    assert len(_tvm.found(skip_padding(module)["main"].body, _tvm.tirx.IfThenElse)) == 1
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((length, 3), (taps, 3, 5)))
    padded = np.pad(x, ((pad, pad), (0, 0)))
    out = (length + 2 * pad - taps) // stride + 1
    expected = [np.einsum("rc,rck->k", padded[i * stride : i * stride + taps], w) for i in range(out)]
    y = _tvm.runtime.tensor(np.full((out, 5), np.nan, "float32"))
    executable = codegen.compile_primfuncs(module, _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(x), _tvm.runtime.tensor(w), y)
    np.testing.assert_allclose(y.numpy(), np.array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copied", [True, False])
def test_the_condition_equals_that_of_the_copy(copied: bool) -> None:
    """Of taps 0, 1, 2 at rows 0 … 6, only those remain that read rows 1 … 7."""
    module = _convolution(7, 3, pad=1, copied=copied)
    (test,) = _tvm.found(skip_padding(module)["main"].body, _tvm.tirx.IfThenElse)
    for row, tap in itertools.product(range(7), range(3)):
        assert bool(number(test.condition, {"i_0": row, "i_1": 0, "r": tap})) == (1 <= row + tap < 8)


def test_functions_without_padding_have_no_condition() -> None:
    module = _convolution(8, 3, pad=0)
    assert not _tvm.found(skip_padding(module)["main"].body, _tvm.tirx.IfThenElse)


def test_unannotated_functions_are_unchanged() -> None:
    module = _convolution(7, 3, pad=1, annotated=False)
    assert skip_padding(module)["main"].same_as(module["main"])


def test_tests_of_a_part_of_a_factor_remain() -> None:
    """(x if a test holds, else 0) + 1 is not zero where the test does not hold."""

    def change(product: Any) -> Any:
        return (product.a + 1.0) * product.b if str(product.ty.dtype) == "float32" else product

    module = _convolution(7, 3, pad=1, copied=False)
    changed = _tvm.map_functions(module, lambda func: _tvm.structural_map(func, (_tvm.tirx.Mul, change)))
    assert len(_tvm.found(skip_padding(module)["main"].body, _tvm.tirx.IfThenElse)) == 1
    assert not _tvm.found(skip_padding(changed)["main"].body, _tvm.tirx.IfThenElse)
