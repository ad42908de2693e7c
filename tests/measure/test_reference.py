from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from schedules import run, without_threads
from support.faulty import elementwise, matmul, te, topi
from support.operators import OPERATORS

from felixlike import _tvm
from felixlike.codegen import cuda_binary, kernels_of, nvrtc
from felixlike.hardware import resolve_target
from felixlike.measure.check import reference
from felixlike.measure.check.reference import double_precision, in_quick_order, in_threads


def computed(func: Any, *inputs: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Compute the function's double-precision form on float64 inputs."""
    module = double_precision(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    built = _tvm.tvm.compile(module, target="llvm")
    shape = [int(extent) for extent in func.params[-1].shape]
    tensors = [_tvm.runtime.tensor(array) for array in (*inputs, np.zeros(shape))]
    built["main"](*tensors)
    return np.asarray(tensors[-1].numpy())


X = np.random.default_rng(0).standard_normal((8, 32))


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (topi.nn.softmax, np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
        (topi.tanh, np.tanh(X)),
        (topi.sigmoid, 1 / (1 + np.exp(-X))),
        (lambda x: topi.cast(topi.cast(x * 10.0, "int32"), "float32"), np.trunc(X * 10)),
        (lambda x: topi.sum(x, axis=1), X.sum(1)),
        (lambda x: topi.max(x, axis=1), X.max(1)),
        (lambda x: topi.add(x, te.const(0.1, "float32")), X + 0.1),
    ],
    ids=["softmax", "tanh", "sigmoid", "cast", "sum", "max", "constant"],
)
def test_operators_are_exact_to_double_precision(compute: Any, expected: np.ndarray[Any, np.dtype[Any]]) -> None:
    np.testing.assert_allclose(computed(elementwise(compute), X), expected, rtol=1e-14, atol=1e-14)


def test_sums_are_exact_to_double_precision() -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 64, 64))
    np.testing.assert_allclose(computed(matmul(64), a, b), a @ b, rtol=1e-12, atol=1e-12)


def test_half_precision_is_widened() -> None:
    np.testing.assert_allclose(computed(elementwise(topi.nn.relu, dtype="float16"), X), np.maximum(X, 0))


def test_integers_and_shapes_are_unchanged() -> None:
    module = _tvm.IRModule({"main": elementwise(lambda x: topi.cast(x, "int32"))})
    x, y = double_precision(module)["main"].params
    assert (str(x.dtype), str(y.dtype)) == ("float64", "int32")
    assert [int(extent) for extent in x.shape] == [8, 32]
    assert str(module["main"].params[0].dtype) == "float32"  # the original is untouched


@pytest.mark.parametrize("strided", [1, 2**16])
@pytest.mark.parametrize(
    "name",
    [
        "matmul",
        "matvec",
        "dense_bias_relu",
        "batch_matmul",
        "conv2d_odd",
        "conv2d_strided",
        "softmax",
        "conv3d",
        "sum_all",
    ],
)
def test_the_order_of_loops_does_not_change_sums(name: str, strided: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms of each output are added in the same order, so the outputs are bit-identical."""
    monkeypatch.setattr(reference, "_SIZES", replace(reference._SIZES, reordered=1, strided=strided))
    module = double_precision(
        _tvm.IRModule({"main": OPERATORS[name](small_size=True).with_attr("global_symbol", "main")})
    )
    random = np.random.default_rng(0)
    arrays = [random.standard_normal([int(size) for size in p.shape]) for p in module["main"].params]
    outputs = []
    for variant in (module, in_quick_order(module)):
        tensors = [_tvm.runtime.tensor(array) for array in arrays]
        _tvm.tvm.compile(variant, target="llvm")["main"](*tensors)
        outputs.append(tensors[-1].numpy())
    assert np.array_equal(*outputs)


def test_large_products_are_tiled_with_columns_innermost() -> None:
    x, w = te.placeholder((128, 768), name="x"), te.placeholder((768, 3072), name="w")
    module = double_precision(_tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.matmul(x, w)])}))
    assert "for k_0, i0, k_1, i1_1 in T.grid(12, 128, 64, 512):" in in_quick_order(module).script()
    small = _tvm.IRModule({"main": matmul(64)})
    assert in_quick_order(small).script() == small.script()


def test_columns_that_are_not_contiguous_are_outermost() -> None:
    x, w = te.placeholder((128, 768), name="x"), te.placeholder((3072, 768), name="w")
    module = double_precision(_tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.dense(x, w)])}))
    assert "for i1, i0, k in T.grid(3072, 128, 768):" in in_quick_order(module).script()


SM_90 = resolve_target("sm_90")


@pytest.mark.parametrize(
    "name", ["matmul_odd", "conv2d_strided", "conv2d_grouped", "conv2d_transposed", "softmax", "layer_norm", "max_pool"]
)
def test_gpu_threads_compute_the_same_as_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executing the threads serially gives bit-identical outputs, and the CUDA compiler accepts the kernels."""
    monkeypatch.setattr(reference, "_SIZES", replace(reference._SIZES, on_gpu=0))
    module = double_precision(
        _tvm.IRModule({"main": OPERATORS[name](small_size=True).with_attr("global_symbol", "main")})
    )
    script = module.script()
    threads = in_threads(module, SM_90)
    assert module.script() == script
    assert threads is not None
    random = np.random.default_rng(0)
    arrays = [random.standard_normal([int(size) for size in p.shape]) for p in module["main"].params]
    assert np.array_equal(run(module, arrays)[-1], run(without_threads(threads), arrays)[-1])
    if nvrtc.library() is not None:
        kernels = kernels_of(cuda_binary(threads, SM_90), "sm_90")
        assert kernels
        assert max(kernel.registers for kernel in kernels) <= 64  # the limit with 1024 threads a block


@pytest.mark.parametrize(
    ("name", "is_worth"),
    [
        ("conv2d_3x3", True),
        ("matmul", True),
        ("softmax", False),  # too few operations
        ("sum_all", False),
    ],
)
def test_only_large_parallel_references_run_on_a_gpu(name: str, *, is_worth: bool) -> None:
    module = double_precision(_tvm.IRModule({"main": OPERATORS[name]().with_attr("global_symbol", "main")}))
    assert (in_threads(module, SM_90) is not None) is is_worth


def test_long_sums_of_few_outputs_run_on_the_cpu() -> None:
    a, r = te.placeholder((64, 2**21), name="A"), te.reduce_axis((0, 2**21), name="r")
    total = te.create_prim_func([a, te.compute((64,), lambda i: te.sum(a[i, r], axis=r), name="total")])
    assert in_threads(double_precision(_tvm.IRModule({"main": total})), SM_90) is None


def test_operators_of_one_opaque_block_are_unchanged() -> None:
    x = te.placeholder((4, 64), name="x")
    scan = _tvm.IRModule({"main": te.create_prim_func([x, topi.cumsum(x, axis=1)])})
    assert in_quick_order(scan).script() == scan.script()
