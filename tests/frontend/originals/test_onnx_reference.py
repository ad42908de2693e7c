"""Tests for ONNX models as references, evaluated by the onnx package in float32 and float64."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from felixlike.frontend.originals.onnx_reference import OnnxOriginal, in_double_precision

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def branching() -> Any:
    """Return a model of x·w + c or x·w, chosen by a branch, with weights, constants, casts and subgraphs."""
    w = numpy_helper.from_array(np.full((3, 4), 1 / 3, np.float32), "w")
    scalar = helper.make_tensor_value_info
    then = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(0.1), "c")),
            helper.make_node("Add", ["p", "c"], ["t"]),
        ],
        "then",
        [],
        [scalar("t", TensorProto.FLOAT, [2, 4])],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Cast", ["p"], ["o"], to=TensorProto.FLOAT)],
        "otherwise",
        [],
        [scalar("o", TensorProto.FLOAT, [2, 4])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("If", ["b"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    inputs = [scalar("x", TensorProto.FLOAT, [2, 3]), scalar("b", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "net", inputs, [scalar("y", TensorProto.FLOAT, [2, 4])], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("branch", [True, False])
def test_outputs_in_native_and_double_precision(branch: bool) -> None:
    proto = branching()
    before = proto.SerializeToString(deterministic=True)
    original = OnnxOriginal(proto)
    inputs = (X, torch.tensor(branch))
    (native,), (wide,) = original.outputs(inputs), original.outputs(inputs, wide=True)
    assert (native.dtype, wide.dtype) == (torch.float32, torch.float64)
    third, tenth = float(np.float32(1 / 3)), float(np.float32(0.1))
    expected = (X.double().sum(1, keepdim=True) * third).expand(2, 4) + (tenth if branch else 0)
    torch.testing.assert_close(wide, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(native, expected.float())
    assert proto.SerializeToString(deterministic=True) == before
    assert original.name(wide=True) == "onnx.reference in float64"


def test_perturbed_inputs_are_copies() -> None:
    original, inputs, before = OnnxOriginal(branching()), (X, torch.tensor(True)), X.clone()
    (plain,), (moved,) = original.outputs(inputs), original.outputs(inputs, moved=1)
    assert 0 < (plain - moved).abs().max() < 1e-6
    assert torch.equal(X, before)


def test_a_copy_in_double_precision_is_a_valid_model() -> None:
    onnx.checker.check_model(in_double_precision(branching()), full_check=True)


def test_onnx_runtime_computes_native_precision_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime is not a dependency, so the test mocks the part that the module uses."""
    feeds: list[Any] = []

    class Session:
        def __init__(self, content: bytes, options: Any, providers: list[str]) -> None:
            assert onnx.load_from_string(content).graph.name == "net"
            assert providers == ["CPUExecutionProvider"]

        def run(self, outputs: None, feed: dict[str, Any]) -> list[Any]:
            feeds.append(feed)
            return [np.zeros(2, np.float32)]

    module: Any = ModuleType("onnxruntime")
    module.InferenceSession, module.SessionOptions = Session, type("Options", (), {})
    module.GraphOptimizationLevel = type("Level", (), {"ORT_DISABLE_ALL": 0})
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    original = OnnxOriginal(branching())
    (output,) = original.outputs((X, torch.tensor(True)))
    assert output.tolist() == [0, 0]
    assert list(feeds[0]) == ["x", "b"]
    assert original.name(wide=False) == "ONNX Runtime"


def test_an_unknown_operator_raises() -> None:
    graph = helper.make_graph(
        [helper.make_node("NoSuchThing", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(Exception, match="NoSuchThing"):
        OnnxOriginal(model).outputs((torch.ones(2),))
