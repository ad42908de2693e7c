"""`choose_lazily` keeps vectorized code from reading the side of a Select that is not chosen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.passes import choose_lazily
from felixlike.hardware import host_target

tirx = _tvm.tirx
ZERO = tirx.const(0, "float32")
N, M = 40, 96
"""Elements read and written."""


def _module(value: Callable[[Any, Any], Any], read: int = N, written: int = M) -> Any:
    """Return y[i] = value(x, i), in vectors of 16."""
    x = _tvm.te.placeholder((read,), "float32", name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((written,), lambda i: value(x, i), name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    _, lane = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, 16])
    schedule.vectorize(lane)
    return schedule.mod


def _number_of_selects(module: Any) -> int:
    return len(_tvm.found(choose_lazily(module)["main"].body, tirx.Select))


UNSAFE: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "limited index": (
        lambda x, i: tirx.Select(i < N, x[tirx.min(i, N - 1)], ZERO),
        lambda x, i: np.where(i < N, x[np.minimum(i, N - 1)], 0),
    ),
    "index without limits": (
        lambda x, i: tirx.Select(i < N, x[i], ZERO),
        lambda x, i: np.where(i < N, x[np.minimum(i, N - 1)], 0),
    ),
    "other side": (
        lambda x, i: tirx.Select(i < M - N, ZERO, x[tirx.max(i - (M - N), 0)]),
        lambda x, i: np.where(i < M - N, 0, x[np.maximum(i - (M - N), 0)]),
    ),
    "inner choice by value": (
        lambda x, i: tirx.Select(i < N, tirx.Select(x[0] > 0, x[tirx.min(i, N - 1)], ZERO), ZERO),
        lambda x, i: np.where(i < N, np.where(x[0] > 0, x[np.minimum(i, N - 1)], 0), 0),
    ),
    "inner choice by position": (
        lambda x, i: tirx.Select(x[0] > 0, tirx.Select(i >= N, ZERO, x[tirx.min(i, N - 1)]), ZERO),
        lambda x, i: np.where(x[0] > 0, np.where(i >= N, 0, x[np.minimum(i, N - 1)]), 0),
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_reads_stay_within_the_buffer(name: str) -> None:
    value, expected = UNSAFE[name]
    module = _module(value)
    assert _number_of_selects(module) < len(_tvm.found(module["main"].body, tirx.Select))
    x, y = np.random.default_rng(0).uniform(1, 2, N).astype("float32"), _tvm.runtime.tensor(np.zeros(M, "float32"))
    codegen.compile_primfuncs(module, host_target()).jit()["main"](_tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), expected(x, np.arange(M)))


@pytest.mark.parametrize(
    "value",
    [
        lambda x, i: tirx.Select(x[i % N] > 0, x[i % N], ZERO),
        lambda x, i: tirx.Select(i < N, x[i // 4], ZERO),
        lambda x, i: tirx.Select(i < N, ZERO, tirx.const(1, "float32")),
        lambda x, i: tirx.Select(i % 2 == 0, x[x[i % N].astype("int32")], ZERO),  # nothing is known of the index
    ],
)
def test_other_choices_are_not_changed(value: Callable[[Any, Any], Any]) -> None:
    module = _module(value)
    assert _tvm.structural_hash(choose_lazily(module)) == _tvm.structural_hash(module)


def test_loops_may_share_a_variable() -> None:
    x, y = (_tvm.tirx.decl_buffer((n,), "float32", name=name) for n, name in ((N, "x"), (M, "y")))
    i = tirx.Var("i", "int32")
    store = tirx.BufferStore(y, tirx.Select(i < N, x[tirx.min(i, N - 1)], ZERO), [i])
    loops = [tirx.For(i, 0, extent, tirx.ForKind.SERIAL, store) for extent in (8, M)]
    func = _tvm.PrimFunc([x, y], tirx.SeqStmt(loops))
    module = _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert _tvm.structural_hash(choose_lazily(module)) == _tvm.structural_hash(module)


def test_code_does_not_crash_where_the_other_side_is_far_away() -> None:
    # In a process of its own: a wrong read ends it. 64 MB behind a small buffer are not mapped.
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from codegen.test_choose_lazily import _module, _tvm, codegen, host_target, np, tirx, ZERO
read, written = 1024, 2**26
module = _module(lambda x, i: tirx.Select(i < read, x[tirx.min(i, read - 1)], ZERO), read, written)
x, y = (_tvm.runtime.tensor(np.ones(n, "float32")) for n in (read, written))
codegen.compile_primfuncs(module, host_target()).jit()["main"](x, y)
assert y.numpy().sum() == read
"""
    subprocess.run([sys.executable, "-c", program], check=True)
