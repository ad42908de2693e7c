"""Test `optimize` with PrimFuncs, Relax modules and ONNX models that have symbolic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import dynamic_operators as operators

import felixlike as fx
from felixlike import _tvm
from felixlike.errors import EmptyModel, FelixlikeError, InputMismatch, InvalidDim, InvalidModel, InvalidShape

_T = fx.Dim("T", range(1, 41))


def _assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_primfunc_is_correct_at_every_size(tmp_path: Path) -> None:
    optimized = fx.optimize(operators.dense(24, 40), ((_T, 24), (40, 24), (40,)), rounds=0, progress=False)
    w, b = torch.randn(40, 24), torch.randn(40)
    optimized.save(tmp_path / "dense.fx")
    for model in (optimized, fx.load(tmp_path / "dense.fx")):
        for t in (1, 7, 16, 23, 40):
            x = torch.randn(t, 24)
            _assert_close(model(x, w, b), x @ w.T + b)
        with pytest.raises(InputMismatch, match="T is 41"):
            model(torch.zeros(41, 24), w, b)
    assert optimized.report.reference == "TVM's own build of the module as given"
    assert any("uKernels in code" in task.note for task in optimized.report.tasks)


def test_a_size_shared_by_two_buffers() -> None:
    optimized = fx.optimize(operators.scores(3, 8), {"A": (3, _T, 8), "B": (3, _T, 8)}, rounds=0, progress=False)
    a, b = torch.randn(3, 13, 8), torch.randn(3, 13, 8)
    _assert_close(optimized(a, b), a @ b.mT)


def _relax() -> Any:
    """Return a Relax module of relu(x) · w and the softmax over its row sums."""
    relax, t = _tvm.relax, _tvm.tirx.Var("rows", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([t, 12], "float32"))
    w = relax.Var("w", relax.TensorType([12, 20], "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(builder.emit(relax.op.nn.relu(x)), w))
            sums = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.sum(product, axis=-1)), axis=0))
            out = builder.emit_output(relax.Tuple([product, sums]))
        builder.emit_func_output(out)
    return builder.get()


def test_a_relax_module_is_correct_at_every_size() -> None:
    optimized = fx.optimize(_relax(), ((_T, 12), (12, 20)), rounds=0, progress=False)
    w = torch.randn(12, 20)
    for t in (1, 19, 40):
        x = torch.randn(t, 12)
        product, sums = optimized(x, w)
        _assert_close(product, torch.relu(x) @ w)
        _assert_close(sums, torch.softmax((torch.relu(x) @ w).sum(-1), 0))


def _onnx() -> tuple[torch.nn.Module, Any]:
    pytest.importorskip("onnx", reason="the model is made with it")
    from onnx import TensorProto, helper, numpy_helper

    torch.manual_seed(0)
    dense = torch.nn.Linear(12, 20)
    weights = {"w": dense.weight, "b": dense.bias}
    constants = [numpy_helper.from_array(np.array(value.detach().numpy()), name) for name, value in weights.items()]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1), helper.make_node("Tanh", ["h"], ["y"])]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["batch", 12])]
    graph = helper.make_graph(nodes, "net", inputs, [value("y", TensorProto.FLOAT, ["batch", 20])], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return torch.nn.Sequential(dense, torch.nn.Tanh()).eval(), proto


def test_an_onnx_model_is_correct_at_every_size(tmp_path: Path) -> None:
    import onnx

    model, proto = _onnx()
    onnx.save(proto, str(tmp_path / "net.onnx"))
    for source in (proto, tmp_path / "net.onnx"):
        optimized = fx.optimize(source, {"x": (fx.Dim("T", range(1, 9)), 12)}, rounds=0, progress=False)
        for t in (1, 5, 8):
            x = torch.randn(t, 12)
            _assert_close(optimized(x), model(x).detach())


@pytest.mark.parametrize(
    ("make", "shapes", "error", "words"),
    [
        (lambda: operators.dense(24, 40), ((_T, 24), (40, 24)), InvalidShape, "expected 3 inputs, got 2"),
        (lambda: operators.dense(24, 40), ((_T, 25), (40, 24), (40,)), InvalidShape, r"'X' has shape \(T, 24\).*25"),
        (lambda: operators.dense(24, 40), ((_T, 24), (_T, 24), (40,)), InvalidShape, r"'W' has shape \(40, 24\).*T"),
        (
            lambda: operators.dense(24, 40),
            {"X": (_T, 24), "w": (4, 2), "b": (40,)},
            InvalidShape,
            "no input 'w'.*X, W, b",
        ),
        (
            lambda: operators.scores(3, 8),
            ((3, 5, 8), (3, _T, 8)),
            InvalidShape,
            r"T\w* of input 'A' .*5",
        ),
        (lambda: operators.scores(3, 8), ((3, _T, 8), (3, fx.Dim("U", [2]), 8)), InvalidDim, "T and U"),
        (_relax, ((_T, 12, 1), (12, 20)), InvalidShape, "got 3 sizes"),
        (lambda: _tvm.IRModule({"f": operators.dense(4, 4)}), ((_T, 4),), InvalidModel, "main"),
    ],
)
def test_invalid_shapes_and_modules_raise(make: Any, shapes: Any, error: type[FelixlikeError], words: str) -> None:
    with pytest.raises(error, match=words):
        fx.optimize(make(), shapes, rounds=0, progress=False)


def test_a_primfunc_without_buffers_raises() -> None:
    tirx = _tvm.tirx
    func = _tvm.PrimFunc([tirx.Var("n", "int64")], tirx.Evaluate(tirx.const(0)))
    with pytest.raises(EmptyModel, match="no buffers"):
        fx.optimize(func, ((_T,),), rounds=0, progress=False)


def test_models_that_return_a_dynamic_size_are_refused() -> None:
    class Counted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x + 1, 2 * x.shape[0]

    with pytest.raises(InvalidModel, match=r"Counted: .*number that depends on dynamic sizes"):
        fx.optimize(Counted(), ((_T, 4),), rounds=0, progress=False)


def _module(sizes: Any, body: Any) -> Any:
    """Return a Relax module of two tensors with these first sizes and 4 columns."""
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    inputs = [relax.Var(name, relax.TensorType([size, 4], "float32")) for name, size in zip("xy", sizes, strict=True)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(body(*inputs)))
        builder.emit_func_output(out)
    return builder.get()


def test_symbols_of_one_dim_are_equal() -> None:
    n, m = (_tvm.tirx.Var(name, "int64") for name in "nm")
    fast = fx.optimize(_module((n, m), _tvm.relax.op.add), ((_T, 4), (_T, 4)), rounds=0, progress=False)
    for size in (1, 17, 40):
        x, y = torch.randn(size, 4), torch.randn(size, 4)
        _assert_close(fast(x, y), x + y)
    with pytest.raises(InputMismatch, match="T is 3 in input 'x' and 1 in input 'y'"):
        fast(torch.zeros(3, 4), torch.zeros(1, 4))


def test_sizes_that_do_not_follow_from_the_inputs_raise() -> None:
    n, m = (_tvm.tirx.Var(name, "int64") for name in "nm")
    with pytest.raises(InvalidModel, match="main: the sizes of output 0 do not follow"):
        fx.optimize(_module((n, m), _tvm.relax.op.add), ((_T, 4), (fx.Dim("S", [1, 2]), 4)), rounds=0, progress=False)
    joined = _module((n, n + 1), lambda x, y: _tvm.relax.op.concat([x, y]))
    with pytest.raises(InvalidModel, match=r"input 'y' has the size n \+ 1"):
        fx.optimize(joined, ((_T, 4), (6, 4)), rounds=0, progress=False)


def test_negative_indices_of_an_onnx_model_count_from_the_end() -> None:
    pytest.importorskip("onnx", reason="the model is made with it")
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", 4]), value("i", TensorProto.INT64, [2, 4])]
    nodes = [helper.make_node("GatherElements", ["x", "i"], ["y"], axis=0)]
    graph = helper.make_graph(nodes, "net", inputs, [value("y", TensorProto.FLOAT, [2, 4])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    example = torch.zeros(2, 4, dtype=torch.int64)
    fast = fx.optimize(proto, {"x": (_T, 4), "i": example}, rounds=0, progress=False)
    for size in (3, 40):
        x, i = torch.randn(size, 4), torch.tensor([[0, -1, 1, -3], [-size, size - 1, 1, 0]])
        _assert_close(fast(x, i), x.gather(0, i % size))


def test_windows_larger_than_the_smallest_size_raise() -> None:
    pytest.importorskip("onnx", reason="the model is made with it")
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones((2, 3, 5), "float32"), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    ends = [value("x", TensorProto.FLOAT, [1, 3, "n"])], [value("y", TensorProto.FLOAT, [1, 2, None])]
    graph = helper.make_graph(nodes, "net", *ends, [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(InvalidDim, match=r"at T = 1 .*size n - 4 = -3\. let T begin at 4"):
        fx.optimize(proto, ((1, 3, _T),), rounds=0, progress=False)


def test_axes_may_have_no_elements() -> None:
    """Rows and columns without the first: one row leaves nothing."""
    relax, n = _tvm.relax, _tvm.tirx.Var("n", "int64")
    weight = torch.randn(12, 20)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([n, 12], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            rows = builder.emit(relax.op.strided_slice(x, [0], [1], [n], assume_inbound=True))
            product = builder.emit(relax.op.matmul(rows, relax.const(weight.numpy())))
            scores = builder.emit(relax.op.matmul(rows, builder.emit(relax.op.permute_dims(rows))))
            out = builder.emit_output(relax.Tuple([product, builder.emit(relax.op.nn.softmax(scores))]))
        builder.emit_func_output(out)
    fast = fx.optimize(builder.get(), ((_T, 12),), trials=8, progress=False)
    for t in (1, 2, 19, 40):
        x1 = torch.randn(t, 12)
        product_of_rows, shares = fast(x1)
        _assert_close(product_of_rows, x1[1:] @ weight)
        _assert_close(shares, torch.softmax(x1[1:] @ x1[1:].T, -1))
