"""`peel_tails` peels loops into whole vectors, and does not change values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Peel
from felixlike.codegen.passes import peel_tails


def _copy(length: int, width: int, lanes: int, *, annotated: bool = True) -> Any:
    """Return y[i] = 2 x[i], with its loop split by a width that need not divide the length."""
    x = _tvm.te.placeholder((length,), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((length,), lambda i: x[i] * 2.0, name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    outer, _ = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, width])
    if annotated:
        Peel(length, lanes).put(schedule, outer)
    return schedule.mod


@pytest.mark.parametrize(("length", "width", "lanes"), [(7, 4, 4), (13, 8, 16), (53, 16, 16), (113, 64, 16), (5, 4, 8)])
def test_values_are_correct(length: int, width: int, lanes: int) -> None:
    executable = codegen.compile_primfuncs(_copy(length, width, lanes), _tvm.Target("llvm"))
    x = np.random.default_rng(0).uniform(-1, 1, length).astype("float32")
    y = _tvm.runtime.tensor(np.full(length, np.nan, "float32"))
    executable.jit()["main"](_tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), 2 * x)


def test_loops_are_peeled_into_vectors_of_decreasing_size() -> None:
    """53 = 16 + 2 · 16 + 4 + 1, and no condition remains."""
    peeled = _tvm.transform.Sequential([_tvm.s_tir.transform.StmtSimplify()])(peel_tails(_copy(53, 16, 16)))
    loops = _tvm.found(peeled["main"].body, _tvm.tirx.For)
    vectors = [int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.VECTORIZED]
    assert vectors == [16, 16, 4]
    assert [int(loop.extent) for loop in loops if loop.kind == _tvm.tirx.ForKind.SERIAL] == [2]
    assert not _tvm.found(peeled["main"].body, _tvm.tirx.IfThenElse)


def test_unannotated_functions_are_unchanged() -> None:
    module = _copy(53, 16, 16, annotated=False)
    assert peel_tails(module)["main"].same_as(module["main"])


@pytest.mark.parametrize(("length", "seam"), [(53, 13), (113, 100), (10, 1), (200, 64)])
def test_no_vector_crosses_a_seam(length: int, seam: int) -> None:
    """For two concatenated tensors, no condition on an element's source remains."""
    x, y = _tvm.te.placeholder((seam,), name="x"), _tvm.te.placeholder((length - seam,), name="y")
    both = _tvm.te.compute((length,), lambda i: _tvm.tirx.if_then_else(i < seam, x[i], y[i - seam]), name="z")
    func = _tvm.te.create_prim_func([x, y, both]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    outer, _ = schedule.split(schedule.get_loops(schedule.get_sblock("z"))[0], [None, length])
    Peel(length, 16, (seam,)).put(schedule, outer)
    peeled = _tvm.s_tir.transform.StmtSimplify()(peel_tails(schedule.mod))
    assert not _tvm.found(peeled["main"].body, _tvm.tirx.LT)
    a, b = np.arange(seam, dtype="float32"), -np.arange(length - seam, dtype="float32")
    z = _tvm.runtime.tensor(np.full(length, np.nan, "float32"))
    executable = codegen.compile_primfuncs(schedule.mod, _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(a), _tvm.runtime.tensor(b), z)
    np.testing.assert_array_equal(z.numpy(), np.concatenate([a, b]))
