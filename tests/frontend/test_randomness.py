"""Tests that random operators are refused. TVM's importer would drop them or replace them by constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.random_models import RANDOM, Layer, attention
from torch import Tensor
from torch.nn import functional

from felixlike.errors import RandomOperator
from felixlike.frontend import import_model

FIXED: dict[str, Callable[[Layer, Tensor], Any]] = {
    "dropout in eval mode": lambda layer, x: layer.drop(x) + 1,
    "dropout of nothing": lambda _, x: functional.dropout(x, 0.0, training=True) + 1,
    "an LSTM in eval mode": lambda layer, x: layer.lstm(x)[0],
    "attention in eval mode": lambda layer, x: layer.attention(x, x, x)[0],
    "attention": lambda _, x: attention(x, 0.0),
    "rrelu in eval mode": lambda _, x: functional.rrelu(x),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_are_refused_by_name(name: str) -> None:
    with pytest.raises(RandomOperator, match=rf"^Layer: .*\(.*{name}.*\)") as raised:
        import_model(Layer(RANDOM[name]).eval(), torch.randn(3, 8))
    assert raised.value.remedy


@pytest.mark.parametrize("name", FIXED)
def test_operators_that_draw_nothing_are_imported(name: str) -> None:
    assert import_model(Layer(FIXED[name]).eval(), torch.randn(3, 8)).tasks


def test_random_exported_programs_and_files_are_refused(tmp_path: Path) -> None:
    program = torch.export.export(Layer(RANDOM["randn_like"]).eval(), (torch.randn(3, 8),))
    torch.export.save(program, tmp_path / "noise.pt2")
    for model in (program, tmp_path / "noise.pt2"):
        with pytest.raises(RandomOperator, match="randn_like"):
            import_model(model)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_onnx_models_is_refused_in_training_mode(training: bool) -> None:
    value = {"ratio": np.float32(0.5), "training": np.bool_(training)}
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Dropout", ["r", *value], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8])],
        [numpy_helper.from_array(np.array(constant), name) for name, constant in value.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    if not training:
        assert import_model(model).tasks
        return
    with pytest.raises(RandomOperator, match=r"^net: .*\bDropout\b"):
        import_model(model)
