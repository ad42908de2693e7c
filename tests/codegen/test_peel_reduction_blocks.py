"""`first_and_last` peels the blocks of a reduction: same values, without separate passes over the accumulators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Blocks
from felixlike.codegen.passes import first_and_last


def _product(
    n: int, *, lanes: int = 4, vectors: int = 2, annotated: bool = True, transposed: bool = False, twice: bool = False
) -> Any:
    """Return Y[i, j] = max(Σ_k a[i, k] · b[k, j], 0) in tiles of 2 rows with k in blocks of 5, or its transpose.

    twice: The sum's square instead.
    """
    a, b = _tvm.te.placeholder((n, 15), name="a"), _tvm.te.placeholder((15, n), name="b")
    k = _tvm.te.reduce_axis((0, 15), name="k")
    s = _tvm.te.compute((n, n), lambda i, j: _tvm.te.sum(a[i, k] * b[k, j], axis=k), name="s")

    def result(i: Any, j: Any) -> Any:
        return s[i, j] * s[i, j] if twice else _tvm.te.max(s[(j, i) if transposed else (i, j)], 0.0)

    y = _tvm.te.compute((n, n), result, name="y")
    schedule = _tvm.Schedule(
        _tvm.IRModule({"main": _tvm.te.create_prim_func([a, b, y]).with_attr("global_symbol", "main")})
    )
    block, last = schedule.get_sblock("s"), schedule.get_sblock("y")
    i, j, k_loop = schedule.get_loops(block)
    i_0, i_1 = schedule.split(i, [None, 2])
    j_0, j_1, j_2 = schedule.split(j, [None, vectors, lanes])
    k_0, k_1 = schedule.split(k_loop, [None, 5])
    schedule.reorder(j_0, k_0, i_0, k_1, i_1, j_1, j_2)
    if not transposed:
        schedule.reverse_compute_at(last, j_0)
        _, lane = schedule.split(schedule.get_loops(last)[-1], [None, lanes])
        schedule.vectorize(lane)
    for loop in (i_1, j_1):
        schedule.unroll(loop)
    schedule.vectorize(j_2)
    if annotated:
        Blocks().put(schedule, k_0)
    schedule.decompose_reduction(block, k_0)
    return schedule.mod


def _conditions(module: Any) -> int:
    return len(_tvm.found(first_and_last(module)["main"].body, _tvm.tirx.IfThenElse))


@pytest.mark.parametrize(("n", "vectors", "twice"), [(8, 2, False), (16, 1, False), (24, 3, False), (8, 2, True)])
def test_values_are_correct(n: int, vectors: int, twice: bool) -> None:
    module = _product(n, vectors=vectors, twice=twice)
    assert _conditions(module) == 2
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (n, 15)).astype("float32"), rng.uniform(-1, 1, (15, n)).astype("float32")
    y = _tvm.runtime.tensor(np.full((n, n), np.nan, "float32"))
    executable = codegen.compile_primfuncs(module, _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(a), _tvm.runtime.tensor(b), y)
    expected = (a @ b) ** 2 if twice else np.maximum(a @ b, 0)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [7, 13, 17])
def test_values_of_padded_tiles_are_correct(n: int) -> None:
    a, b = _tvm.te.placeholder((n, 15), name="a"), _tvm.te.placeholder((15, n), name="b")
    k = _tvm.te.reduce_axis((0, 15), name="k")
    s = _tvm.te.compute((n, n), lambda i, j: _tvm.te.sum(a[i, k] * b[k, j], axis=k), name="s")
    y = _tvm.te.compute((n, n), lambda i, j: _tvm.te.max(s[i, j], 0.0), name="y")
    func = _tvm.te.create_prim_func([a, b, y]).with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block, last = schedule.get_sblock("s"), schedule.get_sblock("y")
    schedule.pad_einsum(block, [6, 8, 1])
    for name in ("a_pad", "b_pad"):
        schedule.compute_inline(schedule.get_sblock(name))
    schedule.compute_inline(schedule.get_consumers(block)[0])
    i, j, k_loop = schedule.get_loops(block)
    (i_0, i_1), (j_0, j_1, j_2) = schedule.split(i, [None, 6]), schedule.split(j, [None, 2, 4])
    k_0, k_1 = schedule.split(k_loop, [None, 5])
    schedule.reorder(j_0, k_0, i_0, k_1, i_1, j_1, j_2)
    schedule.reverse_compute_at(last, j_0)
    _, lane = schedule.split(schedule.get_loops(last)[-1], [None, 4])
    for loop in (i_1, j_1):
        schedule.unroll(loop)
    for loop in (lane, j_2):
        schedule.vectorize(loop)
    Blocks().put(schedule, k_0)
    schedule.decompose_reduction(block, k_0)
    assert _conditions(schedule.mod) > 2
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-1, 1, (n, 15)).astype("float32"), rng.uniform(-1, 1, (15, n)).astype("float32")
    result = _tvm.runtime.tensor(np.full((n, n), np.nan, "float32"))
    executable = codegen.compile_primfuncs(schedule.mod, _tvm.Target("llvm"))
    executable.jit()["main"](_tvm.runtime.tensor(x), _tvm.runtime.tensor(z), result)
    np.testing.assert_allclose(result.numpy(), np.maximum(x @ z, 0), rtol=1e-5, atol=1e-6)


def test_tiles_across_the_output_are_unchanged() -> None:
    """If each tile initialized and wrote its own outputs, vectors would be scattered."""
    module = _product(8, transposed=True)
    assert _conditions(module) == 0
    assert not any(loop.annotations for loop in _tvm.found(first_and_last(module)["main"].body, _tvm.tirx.For))


def test_unannotated_functions_are_unchanged() -> None:
    module = _product(8, annotated=False)
    assert first_and_last(module)["main"].same_as(module["main"])
