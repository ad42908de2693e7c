"""ONNX models evaluated by the onnx package, in float64 too."""

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
    """x·w + c, or x·w in float32, which a branch decides: weights, constants, conversions and graphs in nodes."""
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
def test_precisions(branch: bool) -> None:
    proto = branching()
    before = proto.SerializeToString(deterministic=True)
    original = OnnxOriginal(proto)
    inputs = (X, torch.tensor(branch))
    (own,), (wide,) = original.outputs(inputs), original.outputs(inputs, wide=True)
    assert (own.dtype, wide.dtype) == (torch.float32, torch.float64)
    third, tenth = float(np.float32(1 / 3)), float(np.float32(0.1))
    expected = (X.double().sum(1, keepdim=True) * third).expand(2, 4) + (tenth if branch else 0)
    torch.testing.assert_close(wide, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(own, expected.float())
    assert proto.SerializeToString(deterministic=True) == before
    assert original.name(wide=True) == "onnx.reference in float64"


def test_inputs_are_moved_and_stay_as_they_are() -> None:
    original, inputs, before = OnnxOriginal(branching()), (X, torch.tensor(True)), X.clone()
    (plain,), (moved,) = original.outputs(inputs), original.outputs(inputs, moved=1)
    assert 0 < (plain - moved).abs().max() < 1e-6
    assert torch.equal(X, before)


def test_a_copy_in_double_precision_is_a_valid_model() -> None:
    onnx.checker.check_model(in_double_precision(branching()), full_check=True)


def test_onnx_runtime_gives_the_own_precision_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what this module uses of it, since it is no dependency."""
    asked: list[Any] = []

    class Session:
        def __init__(self, content: bytes, options: Any, providers: list[str]) -> None:
            assert onnx.load_from_string(content).graph.name == "net"
            assert providers == ["CPUExecutionProvider"]

        def run(self, outputs: None, given: dict[str, Any]) -> list[Any]:
            asked.append(given)
            return [np.zeros(2, np.float32)]

    module: Any = ModuleType("onnxruntime")
    module.InferenceSession, module.SessionOptions = Session, type("Options", (), {})
    module.GraphOptimizationLevel = type("Level", (), {"ORT_DISABLE_ALL": 0})
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    original = OnnxOriginal(branching())
    (found,) = original.outputs((X, torch.tensor(True)))
    assert found.tolist() == [0, 0]
    assert list(asked[0]) == ["x", "b"]
    assert original.name(wide=False) == "ONNX Runtime"


def test_an_operator_that_the_evaluator_lacks() -> None:
    graph = helper.make_graph(
        [helper.make_node("NoSuchThing", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    with pytest.raises(Exception, match="NoSuchThing"):
        OnnxOriginal(helper.make_model(graph)).outputs((torch.ones(2),))
