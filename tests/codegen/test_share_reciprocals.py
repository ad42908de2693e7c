"""`share_reciprocals` replaces divisions by multiplications, and their values remain accurate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.passes import share_reciprocals


def _module(divided: Callable[[Any, Any, Any, Any], Any], dtype: str = "float32") -> Any:
    """Return z[i, j] = divided(x, y, i, j) for x[4, 32] and y[4, 32], in vectors."""
    x, y = (_tvm.te.placeholder((4, 32), dtype, name=name) for name in "xy")
    func = _tvm.te.create_prim_func([x, y, _tvm.te.compute((4, 32), lambda i, j: divided(x, y, i, j), name="z")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("z"))[-1])
    return schedule.mod


def _compiled(module: Any) -> Any:
    return codegen.compile_primfuncs(module, _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": 1}))


def test_a_row_has_one_division() -> None:
    executable = _compiled(_module(lambda x, y, i, j: x[i, j] / y[i, 0]))
    assert not [line for line in executable.mod.inspect_source("ll").splitlines() if "fdiv <" in line]
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (4, 32)).astype("float32"), rng.uniform(0.1, 9, (4, 32)).astype("float32")
    b[1, 0], b[2, 0], b[3, 0] = 0, np.inf, np.nan
    z = _tvm.runtime.tensor(np.zeros_like(a))
    executable.jit()["main"](_tvm.runtime.tensor(a), _tvm.runtime.tensor(b), z)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(z.numpy(), a / b[:, :1], rtol=2e-7)


@pytest.mark.parametrize(
    "module",
    [
        _module(lambda x, y, i, j: x[i, j] / y[i, j]),
        _module(lambda x, y, i, j: x[0, j] / y[i, 0]),
        _module(lambda x, y, i, j: x[i, j] / _tvm.tirx.const(3, "float32")),
        _module(lambda x, y, i, j: x[i, j] / y[i, 0], "float64"),
        _module(lambda x, y, i, j: _tvm.te.floor(x[i, j] / y[i, 0]) + x[i, j]),
        _module(lambda x, y, i, j: (x[i, j] / y[i, 0] + 1).astype("int32").astype("float32")),
        _module(lambda x, y, i, j: _tvm.tirx.Select(x[i, j] / y[i, 0] >= 1, x[i, j], y[i, j])),
    ],
    ids=["as many indices", "other indices", "constant", "float64", "rounded", "converted", "compared"],
)
def test_other_divisions_are_unchanged(module: Any) -> None:
    assert _tvm.structural_hash(share_reciprocals(module)) == _tvm.structural_hash(module)
