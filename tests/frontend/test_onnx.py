"""Tests for ONNX models from files and protos, compared with the same network in PyTorch."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from felixlike.errors import EmptyModel, InvalidModel, InvalidShape, MissingDependency, UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.frontend.importers import onnx as onnx_importer
from felixlike.runtime import compile_model, max_relative_error


def proto(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], weights: dict[str, Any] | None = None) -> Any:
    """Return a ModelProto. `inputs` has sizes (numbers or names) by name. All are float32 except "ids", an int64."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "ids" else TensorProto.FLOAT, sizes)
        for name, sizes in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["any"]) for name in outputs]
    constants = [
        numpy_helper.from_array(np.array(value.detach().numpy()), name) for name, value in (weights or {}).items()
    ]
    graph = helper.make_graph(nodes, "net", values, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mlp() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    first, second = nn.Linear(12, 16), nn.Linear(16, 5)
    weights = {"w1": first.weight, "b1": first.bias, "w2": second.weight, "b2": second.bias}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], transB=1),
    ]
    return nn.Sequential(first, nn.ReLU(), second).eval(), proto(nodes, {"x": ["batch", 12]}, ["y"], weights)


def test_mlp_with_shapes() -> None:
    model, source = mlp()
    imported = import_model(source, {"x": (4, 12)})
    assert [str(spec) for spec in imported.inputs] == ["x: float32[4, 12]"]
    verification = max_relative_error(compile_model(imported), model, (torch.randn(4, 12),))
    assert verification.error < 1e-5


def test_convolutions_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval()
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    source = proto(nodes, {"x": [1, 3, 8, 8]}, ["y"], {"w": model[0].weight, "b": model[0].bias})
    onnx.save(source, str(tmp_path / "net.onnx"))
    imported = import_model(tmp_path / "net.onnx")
    assert imported.name == "net"
    verification = max_relative_error(compile_model(imported), model, imported.examples)
    assert verification.error < 1e-5


def test_several_outputs_and_negative_indices() -> None:
    nodes = [helper.make_node("Gather", ["x", "ids"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    compiled = compile_model(import_model(proto(nodes, {"x": [5, 3], "ids": [2]}, ["y", "z"])))
    x, ids = torch.randn(5, 3), torch.tensor([-1, 2])
    rows, negative = compiled(x, ids)
    assert torch.equal(rows, x[ids])
    assert torch.equal(negative, -x)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"^net: input 'x' .*\(batch, 12\)\. .*shapes=\{'x': "),
        ((4, 13), r"^net: input 'x' .*\(batch, 12\).*\(4, 13\)"),
        ((12,), r"^net: input 'x' .*\(batch, 12\).*\(12,\)"),
        ({"y": (4, 12)}, r"^net: .*'y'\. .*inputs are x\."),
        (((4, 12), (4, 12)), "^net: .*1 input, got 2"),
        (torch.ones(4, 12, dtype=torch.int64), "^net: input 'x' .*float32.*int64"),
    ],
)
def test_mismatching_shapes_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidShape, match=message):
        import_model(mlp()[1], shapes)


def test_an_unknown_operator_is_refused() -> None:
    source = proto([helper.make_node("RandomNormalLike", ["x"], ["y"])], {"x": [2]}, ["y"])
    with pytest.raises(UnsupportedOperator, match=r"^net: .*\bRandomNormalLike\b"):
        import_model(source)


def test_an_operator_that_tvm_cannot_convert_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    source = proto([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": [2, 3]}, ["y"])
    with pytest.raises(UnsupportedOperator, match=r"^net: TVM's importer .*"):
        import_model(source)
    assert "Error converting" not in capfd.readouterr().out


def test_an_invalid_graph_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"^onnx: .*nowhere"):
        import_model(proto([helper.make_node("Relu", ["nowhere"], ["y"])], {"x": [2]}, ["y"]))


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(EmptyModel, match=r"^net: .*graph"):
        import_model(proto([], {"x": [2]}, ["x"]))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"\xff\xfe not a protobuf")
    with pytest.raises(InvalidModel, match=r"bad\.onnx: .*ONNX"):
        import_model(path)


def test_a_missing_onnx_package_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"^onnx: .*\. pip install onnx\.$"):
        import_model(path)


# -- models larger than a Protocol Buffers message --------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Path]:
    """Save a model with its weights in another file, and make ONNX's checker refuse protos as it does above 2 GiB."""
    model, source = mlp()
    onnx.save(source, str(tmp_path / "net.onnx"), save_as_external_data=True, location="weights", size_threshold=0)
    check = onnx.checker.check_model

    def refuse(proto_or_path: Any, *more: Any, **named: Any) -> None:
        if isinstance(proto_or_path, onnx.ModelProto):
            raise ValueError("Failed to serialize proto")
        check(proto_or_path, *more, **named)

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    monkeypatch.setattr(onnx_importer, "LARGEST_MESSAGE", 2**24)
    return model, tmp_path / "net.onnx"


def test_a_large_model_is_checked_as_a_file(large: tuple[nn.Module, Path]) -> None:
    model, path = large
    imported = import_model(path, {"x": (4, 12)})
    assert max_relative_error(compile_model(imported), model, (torch.randn(4, 12),)).error < 1e-5
    assert max_relative_error(compile_model(imported), imported.original, imported.examples).error < 1e-5


def test_an_invalid_large_model_is_refused(large: tuple[nn.Module, Path]) -> None:
    damaged = onnx.load(str(large[1]), load_external_data=False)
    damaged.graph.node[0].op_type = "Nothing"
    large[1].write_bytes(damaged.SerializeToString())
    with pytest.raises(InvalidModel, match=r"^onnx: .*Nothing"):
        import_model(large[1], {"x": (4, 12)})


def test_a_large_model_in_memory_is_imported(large: tuple[nn.Module, Path]) -> None:
    imported = import_model(onnx.load(str(large[1])), {"x": (4, 12)})
    assert max_relative_error(compile_model(imported), large[0], (torch.randn(4, 12),)).error < 1e-5


@pytest.mark.parametrize("kind", ["QuantizeLinear", "DequantizeLinear", "MatMulInteger"])
def test_quantised_models_are_refused_by_name(kind: str) -> None:
    weights = {name: torch.tensor(1.0) for name in ("scale", "other")}
    nodes = {
        "QuantizeLinear": [
            helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
            helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
        ],
        "DequantizeLinear": [
            helper.make_node("Cast", ["x"], ["q"], to=TensorProto.INT8),
            helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
        ],
        "MatMulInteger": [
            helper.make_node("Cast", ["x"], ["q"], to=TensorProto.INT8),
            helper.make_node("MatMulInteger", ["q", "q"], ["z"]),
            helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
        ],
    }
    model = proto(nodes[kind], {"x": [4, 4]}, ["y"], weights)
    with pytest.raises(UnsupportedOperator, match=rf"^net: .*\({kind}\)"):
        import_model(model)


def test_tests_for_one_infinity_are_refused_by_name() -> None:
    nodes = [helper.make_node("IsInf", ["x"], ["i"], detect_negative=0), helper.make_node("Cast", ["i"], ["y"], to=1)]
    with pytest.raises(UnsupportedOperator, match="IsInf"):
        import_model(proto(nodes, {"x": [2]}, ["y"]))
