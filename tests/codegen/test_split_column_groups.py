"""`peel_columns` splits off the last, smaller group of columns: same values, in vectors, one condition per group."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Columns
from felixlike.codegen.passes import peel_columns


def _sum(rows: int, columns: int, vectors: int, lanes: int, *, annotated: bool = True) -> Any:
    """Return y[c] = Σ_k x[k, c] in groups of vectors, with a loop for initial values and one for the reduction."""
    x, k = _tvm.te.placeholder((rows, columns), name="x"), _tvm.te.reduce_axis((0, rows), name="k")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((columns,), lambda c: _tvm.te.sum(x[k, c], axis=k), name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    block = schedule.get_sblock("y")
    column, k_loop = schedule.get_loops(block)
    group, vector, lane = schedule.split(column, [None, vectors, lanes])
    schedule.reorder(group, k_loop, vector, lane)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    for nest in (schedule.decompose_reduction(block, k_loop), block):
        if annotated:
            Columns(columns, lanes).put(schedule, schedule.get_loops(nest)[1])
    return schedule.mod


CASES = [(7, 1, 4), (13, 2, 4), (13, 1, 16), (53, 2, 16), (113, 4, 16), (197, 8, 16), (113, 8, 16)]


@pytest.mark.parametrize(("columns", "vectors", "lanes"), CASES)
def test_values_are_correct(columns: int, vectors: int, lanes: int) -> None:
    executable = codegen.compile_primfuncs(_sum(5, columns, vectors, lanes), _tvm.Target("llvm"))
    x = np.random.default_rng(0).uniform(-1, 1, (5, columns)).astype("float32")
    y = _tvm.runtime.tensor(np.full(columns, np.nan, "float32"))
    executable.jit()["main"](_tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), x.astype("float64").sum(0), rtol=1e-5, atol=1e-6)


def test_each_group_has_one_condition() -> None:
    """113 = 64 + 3 · 16 + 1. The reduction loops contain no condition."""
    peeled = _tvm.s_tir.transform.StmtSimplify()(peel_columns(_sum(5, 113, 4, 16)))
    (_, test) = _tvm.found(peeled["main"].body, _tvm.tirx.IfThenElse)  # initial values, then the sums
    for body, vectors in ((test.then_case, [16] * 4), (test.else_case, [16] * 3)):
        assert not _tvm.found(body, _tvm.tirx.IfThenElse)
        loops = _tvm.found(body, _tvm.tirx.For)
        assert [int(f.extent) for f in loops if f.kind == _tvm.tirx.ForKind.SERIAL] == [5]
        assert [int(f.extent) for f in loops if f.kind == _tvm.tirx.ForKind.VECTORIZED] == vectors


def test_unannotated_functions_are_unchanged() -> None:
    module = _sum(5, 53, 2, 16, annotated=False)
    assert peel_columns(module)["main"].same_as(module["main"])


@pytest.mark.parametrize(
    ("target", "lanes", "addition"),
    [
        ({"mcpu": "haswell"}, 8, r"vaddps\s.*%ymm"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, 4, r"fadd\s+v\d+\.4s"),
    ],
    ids=["AVX2", "NEON"],
)
def test_other_processors_add_whole_vectors(target: dict[str, str], lanes: int, addition: str) -> None:
    compiled = codegen.compile_primfuncs(_sum(5, 113, 4, lanes), _tvm.Target({"kind": "llvm", **target}))
    assert re.search(addition, compiled.mod.inspect_source("s"))
