"""Tests for Relax modules as models."""

from typing import Any

import pytest
import torch

from felixlike import _tvm
from felixlike.errors import EmptyModel, InvalidModel, InvalidShape
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

relax = _tvm.relax


def build(outputs: Any, *, rows: Any = 4, name: str = "main") -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 6), "float32"))
    with builder.function(name, [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(outputs(builder, x)))
        builder.emit_func_output(result)
    return builder.get()


def test_operators_are_legalised_and_outputs_stay_nested() -> None:
    def outputs(builder: Any, x: Any) -> Any:
        soft = builder.emit(relax.op.nn.softmax(x))
        return relax.Tuple([soft, relax.Tuple([builder.emit(relax.op.exp(x))])])

    imported = import_model(build(outputs))
    assert {task.name for task in imported.tasks} == {"softmax", "tir_exp"}
    x = torch.randn(4, 6)
    soft, (exp,) = compile_model(imported)(x)
    torch.testing.assert_close(soft, x.softmax(-1))
    torch.testing.assert_close(exp, x.exp())


def test_a_symbolic_input_is_refused() -> None:
    module = build(lambda builder, x: builder.emit(relax.op.exp(x)), rows=_tvm.tirx.Var("n", "int64"))
    with pytest.raises(InvalidShape, match=r"^main: x .*\(n, 6\).*felixlike\.dynamic\.compile"):
        import_model(module)


def test_a_module_without_main_is_refused() -> None:
    module = build(lambda builder, x: builder.emit(relax.op.exp(x)), name="other")
    with pytest.raises(InvalidModel, match=r"^model: .*\bmain\b.*\bother\b"):
        import_model(module)


def test_inputs_that_are_not_tensors_are_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.ShapeType([2, 3]))
    with builder.function("main", [x]):
        builder.emit_func_output(relax.const(1.0))
    with pytest.raises(InvalidModel, match=r"^main: x is .*R\.Shape"):
        import_model(builder.get())


def test_a_module_that_computes_nothing_is_refused() -> None:
    with pytest.raises(EmptyModel, match=r"^main: .*nothing"):
        import_model(build(lambda builder, x: x))
