"""ONNX operators that TVM's importer lacks or converts incorrectly are right, or refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional

import felixlike as fx
from felixlike.errors import InvalidModel, UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Places of ONNX's gates among PyTorch's."""


def model_of(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: Any = (), opset: int = 24) -> Any:
    """Return a ModelProto of float32 inputs. It may have operators of the domain "own"."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "net", values, results, tensors)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(proto)
    for value, known in zip(graph.output, inferred.graph.output, strict=True):
        if known.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(known.type)
        else:
            value.type.tensor_type.shape.dim.add()
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def recurrent(kind: str, layer: Any, length: int, batch: int, *, states: bool) -> Any:
    """Return the ModelProto of a PyTorch layer."""
    suffixes = ("_l0", "_l0_reverse")[: 2 if layer.bidirectional else 1]

    def stacked(name: str) -> Any:
        parts = [getattr(layer, name + suffix).detach() for suffix in suffixes]
        gates = len(_GATES[kind])
        return torch.stack([torch.cat([part.chunk(gates)[gate] for gate in _GATES[kind]]) for part in parts]).numpy()

    weights = {"W": stacked("weight_ih"), "R": stacked("weight_hh")}
    weights["B"] = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    inputs = {"x": [length, batch, layer.input_size]}
    names = ["h", "c"] if kind == "LSTM" else ["h"]
    shape = [len(suffixes), batch, layer.hidden_size]
    inputs |= dict.fromkeys(names, shape) if states else {}
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(
        kind,
        ["x", "W", "R", "B", "", *(names if states else ())],
        ["y", *(f"last_{name}" for name in names)],
        hidden_size=layer.hidden_size,
        direction="bidirectional" if layer.bidirectional else "forward",
        **more,
    )
    return model_of([node], inputs, list(node.output), weights)


@pytest.mark.parametrize(
    ("both", "states"),
    [(False, False), (True, True)],
    ids=["forward from zero", "both directions from states"],
)
@pytest.mark.parametrize("kind", _GATES)
def test_recurrent_layers_are_those_of_pytorch(kind: str, both: bool, states: bool) -> None:
    torch.manual_seed(0)
    layer = getattr(nn, kind)(5, 12, bidirectional=both)
    x, shape = torch.randn(7, 3, 5), (2 if both else 1, 3, 12)
    first = [torch.randn(shape) for _ in range(2 if kind == "LSTM" else 1)] if states else []
    compiled = compile_model(import_model(recurrent(kind, layer, 7, 3, states=states), [x, *first]))
    y, *last = compiled(x, *first)
    given = () if not states else (tuple(first),) if kind == "LSTM" else (first[0],)
    expected, expected_last = layer(x, *given)
    torch.testing.assert_close(y.permute(0, 2, 1, 3).reshape(7, 3, -1), expected)
    for state, other in zip(last, expected_last if kind == "LSTM" else [expected_last], strict=True):
        torch.testing.assert_close(state, other)


def test_a_recurrent_model_is_optimized_and_verified() -> None:
    torch.manual_seed(0)
    proto = recurrent("LSTM", nn.LSTM(8, 16), 5, 2, states=False)
    fast = fx.optimize(proto, trials=0, progress=False)
    assert fast.report.error < 1e-5
    assert "lstm_layer" in " ".join(task.name for task in fast.report.tasks)


@pytest.mark.parametrize(
    ("attributes", "inputs", "words"),
    [
        ({"clip": 1.0}, ["x", "W", "R"], "clip"),
        ({"activations": ["Sigmoid", "Relu", "Tanh"]}, ["x", "W", "R"], "other activations"),
        ({"input_forget": 1}, ["x", "W", "R"], "input_forget"),
        ({}, ["x", "W", "R", "", "", "", "", "P"], "peepholes"),
    ],
)
def test_other_recurrent_layers_are_refused_by_name(attributes: Any, inputs: list[str], words: str) -> None:
    constants = {"W": np.ones((1, 16, 3), "f"), "R": np.ones((1, 16, 4), "f"), "P": np.ones((1, 12), "f")}
    node = helper.make_node("LSTM", inputs, ["y"], hidden_size=4, **attributes)
    with pytest.raises(UnsupportedOperator, match=f"^net: LSTM with {words}"):
        import_model(model_of([node], {"x": [2, 1, 3]}, ["y"], constants, opset=14))


def test_gates_that_are_reset_before_their_product_are_refused() -> None:
    constants = {"W": np.ones((1, 12, 3), "f"), "R": np.ones((1, 12, 4), "f")}
    node = helper.make_node("GRU", ["x", "W", "R"], ["y"], hidden_size=4)
    with pytest.raises(UnsupportedOperator, match=r"^net: GRU with linear_before_reset=0"):
        import_model(model_of([node], {"x": [2, 1, 3]}, ["y"], constants, opset=14))


DEFINED = {
    "attention": (helper.make_node("Attention", ["x", "x", "x"], ["y"], is_causal=1), [2, 3, 6, 8]),
    "celu": (helper.make_node("Celu", ["x"], ["y"], alpha=2.0), [3, 5]),
    "swish of swiglu": (helper.make_node("Swish", ["x"], ["y"], alpha=0.5), [3, 5]),
    "norm with its mean": (helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"], axis=1), [3, 5]),
}


@pytest.mark.parametrize("name", DEFINED)
def test_operators_with_a_definition_are_compiled_from_it(name: str) -> None:
    node, shape = DEFINED[name]
    constants = {"s": np.linspace(0, 1, 5, dtype="f")} if "s" in node.input else {}
    proto = model_of([node], {"x": shape}, list(node.output), constants)
    x = torch.randn(shape)
    outputs = compile_model(import_model(proto, [x]))(x)
    for output, expected in zip(
        outputs if isinstance(outputs, tuple | list) else [outputs],
        ReferenceEvaluator(proto).run(None, {"x": x.numpy()}),
        strict=True,
    ):
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-6)


def compared(nodes: list[Any], shape: list[int], constants: Any, opset: int) -> Any:
    """Compare the output of nodes with that of ONNX's evaluator. Return the imported model."""
    proto = model_of(nodes, {"x": shape}, ["y"], constants, opset=opset)
    x = torch.randn(shape)
    imported = import_model(proto, [x])
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x.numpy()})
    torch.testing.assert_close(compile_model(imported)(x), torch.from_numpy(expected.copy()), rtol=1e-5, atol=1e-5)
    return imported


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_products_so_far(axis: int, exclusive: int, reverse: int) -> None:
    node = helper.make_node("CumProd", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
    compared([node], [3, 5], {"axis": np.array(axis)}, 26)


@pytest.mark.parametrize(
    ("size", "block", "count", "attributes"),
    [
        ((6, 6), (2, 3), 20, {}),
        ((7, 8), (3, 3), 28, {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((9, 9), (2, 2), 42, {"dilations": [2, 3]}),
        ((6, 6), (2, 3), 6, {"strides": [2, 3]}),
    ],
    ids=["overlapping", "padded on one side", "dilated", "side by side"],
)
def test_images_of_columns(size: tuple[int, int], block: tuple[int, int], count: int, attributes: Any) -> None:
    node = helper.make_node("Col2Im", ["x", "size", "block"], ["y"], **attributes)
    constants = {"size": np.array(size), "block": np.array(block)}
    compared([node], [2, 3 * block[0] * block[1], count], constants, 18)


@pytest.mark.parametrize(
    ("shape", "constants", "attributes", "opset"),
    [
        ([2, 8, 1], {}, {"onesided": 1}, 17),
        ([2, 8, 1], {}, {}, 17),
        ([2, 8, 1], {}, {"inverse": 1}, 17),
        ([2, 8, 2], {}, {}, 17),
        ([2, 8, 2], {}, {"inverse": 1}, 17),
        ([2, 3, 8, 1], {}, {"axis": 2, "onesided": 1}, 17),
        ([2, 8, 1], {"length": 11}, {"onesided": 1}, 20),
        ([2, 8, 2], {"length": 5}, {}, 20),
        ([2, 8, 5, 1], {"axis": 1}, {"onesided": 1}, 20),
        ([2, 8, 5, 2], {"axis": -3}, {"inverse": 1}, 20),
        ([2, 8, 5, 2], {}, {"inverse": 1}, 20),
    ],
)
def test_fourier_transforms(shape: list[int], constants: dict[str, int], attributes: Any, opset: int) -> None:
    names = [name if name in constants else "" for name in ("length", "axis")]
    inputs = ["x", *names[: 2 if names[1] else 1 if names[0] else 0]]
    nodes = [helper.make_node("DFT", inputs, ["z"], **attributes), helper.make_node("Neg", ["z"], ["y"])]
    imported = compared(nodes, shape, {name: np.array(value) for name, value in constants.items()}, opset)
    assert imported.note.startswith("PyTorch runs 1 operator of the model: _fft_")


@pytest.mark.parametrize(
    ("node", "shape", "words"),
    [
        (helper.make_node("DFT", ["x"], ["y"], onesided=1), [2, 8, 2], "DFT with onesided for other than real inputs"),
        (helper.make_node("DFT", ["x"], ["y"], onesided=1, inverse=1), [2, 5, 2], "DFT with onesided"),
        (helper.make_node("Col2Im", ["x", "line", "one"], ["y"]), [2, 6, 4], "Col2Im with other images"),
        (helper.make_node("Col2Im", ["x", "image", "wide"], ["y"]), [1, 81, 16], "Col2Im with many windows"),
        (helper.make_node("CumProd", ["x", "place"], ["y"]), [3, 5], "the axis of CumProd is no constant"),
    ],
)
def test_what_these_operators_lack_is_refused_by_name(node: Any, shape: list[int], words: str) -> None:
    constants = {"line": [5], "one": [2], "image": [12, 12], "wide": [9, 9]}
    place = helper.make_node("ArgMax", ["total"], ["places"], axis=0, keepdims=0)
    total = helper.make_node("ReduceSum", ["x"], ["total"], keepdims=1)
    index = helper.make_node("ReduceMax", ["places"], ["place"], keepdims=0)
    nodes = [total, place, index, node] if "place" in node.input else [node]
    used = {name: np.array(value) for name, value in constants.items() if name in node.input}
    proto = model_of(nodes, {"x": shape}, ["y"], used, opset=26 if node.op_type == "CumProd" else 20)
    with pytest.raises(UnsupportedOperator, match=f"^net: {words}"):
        import_model(proto)


def test_functions_of_the_model_are_written_out() -> None:
    body = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    function = helper.make_function("own", "Doubled", ["a"], ["c"], body, [helper.make_opsetid("", 18)])
    proto = model_of([helper.make_node("Doubled", ["x"], ["y"], domain="own")], {"x": [4]}, ["y"], opset=18)
    proto.functions.append(function)
    x = torch.randn(4)
    assert torch.equal(compile_model(import_model(proto, [x]))(x), torch.relu(x + x))


def test_what_is_refused_is_refused_in_functions_too() -> None:
    body = [
        helper.make_node("IsInf", ["a"], ["b"], detect_negative=0),
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
    ]
    function = helper.make_function("own", "Tested", ["a"], ["c"], body, [helper.make_opsetid("", 18)])
    proto = model_of([helper.make_node("Tested", ["x"], ["y"], domain="own")], {"x": [4]}, ["y"], opset=18)
    proto.functions.append(function)
    with pytest.raises(UnsupportedOperator, match="IsInf for one of the infinities"):
        import_model(proto)


def test_operators_of_other_domains_are_refused_even_if_their_name_is_known() -> None:
    proto = model_of([helper.make_node("Relu", ["x"], ["y"], domain="own")], {"x": [4]}, ["y"], opset=18)
    with pytest.raises(UnsupportedOperator, match=r"^net: .*own\.Relu"):
        import_model(proto)


def test_transposed_convolutions_reach_the_given_sizes() -> None:
    weights = torch.randn(3, 4, 3, 3)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[10, 9])
    proto = model_of([node], {"x": [1, 3, 5, 5]}, ["y"], {"w": weights.numpy()}, opset=11)
    x = torch.randn(1, 3, 5, 5)
    y = compile_model(import_model(proto, [x]))(x)
    whole = functional.conv_transpose2d(x, weights, stride=2)
    torch.testing.assert_close(y, whole[:, :, 1:, 1:-1])


def test_remainders_have_the_sign_of_the_divisor() -> None:
    x = torch.tensor([1.0, -1.0, 1e10, 5.5, -7.0, 3.0])
    y = torch.tensor([0.1, 0.1, 3.0, -2.0, float("inf"), float("-inf")])
    proto = model_of([helper.make_node("Mod", ["x", "y"], ["z"])], {"x": [6], "y": [6]}, ["z"], opset=13)
    torch.testing.assert_close(compile_model(import_model(proto, [x, y]))(x, y), torch.remainder(x, y), rtol=0, atol=0)


LIMITS: dict[str, Any] = {
    "BatchNormalization in training mode": ("BatchNormalization", ["x", "s", "s", "s", "s"], {"training_mode": 1}),
    "Resize with antialias": ("Resize", ["x", "", "half"], {"mode": "linear", "antialias": 1}),
    "Resize to a fraction": ("Resize", ["x", "", "part"], {"mode": "linear"}),
    "RoiAlign of maxima": ("RoiAlign", ["x", "boxes", "number"], {"mode": "max"}),
}


@pytest.mark.parametrize("words", LIMITS)
def test_what_tvm_would_ignore_is_refused_by_name(words: str) -> None:
    operator, inputs, attributes = LIMITS[words]
    constants = {
        "s": np.ones(3, "f"),
        "half": np.array([1, 1, 0.5, 0.5], "f"),
        "part": np.array([1, 1, 0.6, 0.6], "f"),
        "boxes": np.array([[0, 0, 2, 2]], "f"),
        "number": np.array([0], "int64"),
    }
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    proto = model_of([node], {"x": [1, 3, 4, 4]}, ["y"], {name: constants[name] for name in {*inputs} & {*constants}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises((UnsupportedOperator, InvalidModel), match=words):
            import_model(proto)


def test_outputs_that_are_sequences_are_refused() -> None:
    proto = model_of([helper.make_node("SequenceConstruct", ["x"], ["y"])], {"x": [2]}, ["y"])
    kind = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    proto.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    with pytest.raises(InvalidModel, match="output 'y' is not a tensor"):
        import_model(proto)


@pytest.mark.parametrize(("name", "attributes"), [("BlackmanWindow", {}), ("HannWindow", {"periodic": 0})])
def test_definitions_use_the_defaults_of_attributes(name: str, attributes: dict[str, int]) -> None:
    nodes = [helper.make_node(name, ["size"], ["w"], **attributes), helper.make_node("Mul", ["x", "w"], ["y"])]
    model = model_of(nodes, {"x": [3, 10]}, ["y"], {"size": np.array(10)})
    x = torch.rand(3, 10)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    torch.testing.assert_close(fx.optimize(model, (x,), trials=0)(x), torch.from_numpy(expected))
