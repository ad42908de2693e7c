"""`names_in_buffers` keeps the named values of formulas in buffers, so that formulas of formulas compile in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from felixlike import _tvm, codegen
from felixlike.codegen.names_in_buffers import names_in_buffers
from felixlike.codegen.passes import vectorise_math


def _module(value: Callable[[Any, Any], Any]) -> Any:
    """Return y[i] = value(x, i) for x[64], in vectors, with names after `vectorise_math`."""
    x = _tvm.te.placeholder((64,), "float32", name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((64,), lambda i: value(x, i), name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    schedule.vectorize(schedule.split(schedule.get_loops(schedule.get_sblock("y"))[-1], [None, 16])[-1])
    return schedule.mod


def _lowered(module: Any) -> Any:
    """Return what TVM's passes make of a module, up to its code generator."""
    target = _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu()})
    pipeline, finish, _ = _tvm.tirx.get_tir_pipeline("default")
    return finish()(pipeline(_tvm.tirx.transform.BindTarget(target.with_host(target))(vectorise_math(module))))


def _names(module: Any) -> int:
    return sum(len(_tvm.found(func.body, _tvm.tirx.Let)) for func in module.functions.values())


def _result(module: Any, x: Any) -> Any:
    """Return y of a compiled module."""
    y = _tvm.runtime.tensor(np.zeros_like(x))
    executable = codegen.compile_primfuncs(module, _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu()}))
    executable.jit()["main"](_tvm.runtime.tensor(x), y)
    return y.numpy()


_X = np.random.default_rng(0).normal(size=64).astype("float32")


def test_formulas_of_formulas_have_no_names_and_are_right() -> None:
    te = _tvm.te
    module = _module(lambda x, i: x[i] * te.tanh(te.log(te.exp(te.sin(te.atan(x[i]))) + np.float32(1))))
    lowered = _lowered(module)
    assert _names(lowered) > 20
    assert _names(names_in_buffers(lowered)) == 0
    wide = _X.astype("float64")
    np.testing.assert_allclose(
        _result(module, _X), wide * np.tanh(np.log1p(np.exp(np.sin(np.arctan(wide))))), rtol=1e-6
    )


def test_names_under_a_condition_stay() -> None:
    module = _module(lambda x, i: _tvm.tirx.if_then_else(i < 63, _tvm.te.tanh(_tvm.te.exp(x[i + 1])), np.float32(0)))
    lowered = _lowered(module)
    assert _names(names_in_buffers(lowered)) == _names(lowered) > 0
    expected = np.append(np.tanh(np.exp(_X[1:].astype("float64"))), 0)
    np.testing.assert_allclose(_result(module, _X), expected, rtol=1e-6)


def test_statements_without_names_are_unchanged() -> None:
    lowered = _lowered(_module(lambda x, i: x[i] + np.float32(1)))
    assert _tvm.structural_equal(names_in_buffers(lowered), lowered)
