"""Golden tests of every graph rewrite on a minimal function. The texts before and after are documentation, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from texts import before_and_after

from felixlike import _tvm
from felixlike.frontend import constants, rewrites
from felixlike.frontend.rewrites import pipeline, simplify_indices, winograd
from felixlike.frontend.rewrites.rewriting import constant
from felixlike.hardware import PAIRS_PRECISION, described_target, target_device
from felixlike.hardware.vectors import VectorUnit

_WIDTH = VectorUnit(512, 32)
_AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _graph(write: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32", **others: str) -> Any:
    """Return a Relax module whose main calls `write` with tensors x, y, z. `others` are dtypes by tensor name."""
    relax = _tvm.relax
    inputs = [
        relax.Var(name, relax.TensorType(shape, others.get(name, dtype)))
        for name, shape in zip("xyz", shapes, strict=False)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(write(*inputs)))
        builder.emit_func_output(result)
    return builder.get()


def _weights(*shape: int) -> Any:
    return constant(np.ones(shape, "float32"))


def with_total_order() -> Any:
    """The place of the largest, NaN above all numbers."""
    return _graph(lambda x: _tvm.relax.op.argmax(x, axis=1), (4, 8))


def with_wide_constants() -> Any:
    """A bfloat16 constant that is read in float32."""
    ones = _tvm.relax.const(np.ones(8, "float32"), "bfloat16")
    return _graph(lambda x: _tvm.relax.op.add(x, _tvm.relax.op.astype(ones, "float32")), (4, 8))


def with_bfloat16_factors() -> Any:
    """A product of a bfloat16 tensor and a constant, in float32."""
    op = _tvm.relax.op
    return _graph(lambda x: op.matmul(op.astype(x, "float32"), _weights(8, 4)), (6, 8), dtype="bfloat16")


def with_flat_convolutions() -> Any:
    """A convolution of one tap and 7 columns."""
    op, layouts = _tvm.relax.op, {"data_layout": "NHWC", "kernel_layout": "OIHW", "out_dtype": "float32"}
    weights = _tvm.relax.const(np.ones((48, 32, 1, 1), "float32"), "bfloat16")
    return _graph(lambda x: op.nn.conv2d(x, weights, **layouts), (1, 7, 7, 32), dtype="bfloat16")


def without_equal_expressions() -> Any:
    """A product with a large constant, twice."""
    op, weights = _tvm.relax.op, _weights(64, 64)
    return _graph(lambda x: op.add(op.matmul(x, weights), op.matmul(x, weights)), (4, 64))


def with_computed_constants() -> Any:
    """A sum of constants that an operator of the input reads."""
    op = _tvm.relax.op
    return _graph(lambda x: op.multiply(x, op.add(_weights(4), _weights(4))), (3, 4))


def with_narrow_tensors() -> Any:
    """A tensor that a convolution and an addition read."""
    op, layouts = _tvm.relax.op, {"data_layout": "NHWC", "kernel_layout": "OIHW"}

    def block(x: Any) -> Any:
        y = op.nn.relu(x)
        return op.add(op.nn.conv2d(y, _weights(32, 32, 1, 1), **layouts), y)

    return _graph(block, (1, 4, 4, 32))


def with_own_conversions() -> Any:
    """A bfloat16 tensor that two operators read in float32."""
    op = _tvm.relax.op

    def block(x: Any) -> Any:
        y = op.astype(x, "float32")
        return _tvm.relax.Tuple([op.nn.relu(y), op.exp(y)])

    return _graph(block, (4, 6), dtype="bfloat16")


def with_searched_boundaries() -> Any:
    """The bucket of each element between five boundaries."""
    return _graph(lambda x, y: _tvm.relax.op.bucketize(x, y), (4, 8), (5,))


def with_wide_norms() -> Any:
    """A layer norm of float64."""
    layer_norm = _tvm.relax.op.nn.layer_norm
    return _graph(lambda x, y, z: layer_norm(x, y, z, axes=[-1]), (4, 8), (8,), (8,), dtype="float64")


def with_safe_indices() -> Any:
    """Rows of a table by number."""
    return _graph(lambda x, y: _tvm.relax.op.take(x, y, axis=0, mode="fast"), (4, 8), (2,), y="int64")


def with_row_scatters() -> Any:
    """Rows that are added to rows by number."""
    op = _tvm.relax.op

    def added(x: Any, y: Any, z: Any) -> Any:
        return op.scatter_elements(x, op.broadcast_to(y, (3, 40)), z, axis=0, reduction="add")

    return _graph(added, (4, 40), (3, 1), (3, 40), y="int64")


def with_absorbed_pads() -> Any:
    """Zeros around what a convolution reads."""
    op = _tvm.relax.op.nn
    return _graph(lambda x: op.conv2d(op.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]), _weights(8, 4, 3, 3)), (1, 4, 6, 6))


def with_folded_batch_norms() -> Any:
    """A batch norm after a convolution."""
    op = _tvm.relax.op.nn

    def write(x: Any) -> Any:
        convolved = op.conv2d(x, _weights(8, 4, 3, 3))
        return _tvm.relax.TupleGetItem(op.batch_norm(convolved, *[_weights(8)] * 4, axis=1), 0)

    return _graph(write, (1, 4, 6, 6))


def in_phases() -> Any:
    """A transposed convolution along one dimension, with stride 2."""
    convolution = partial(_tvm.relax.op.nn.conv1d_transpose, strides=2, padding=1)
    return _graph(lambda x, y: convolution(x, y), (1, 4, 5), (4, 8, 4))


def with_shared_factors() -> Any:
    """A batch of matrices times copies of one."""
    op = _tvm.relax.op
    return _graph(lambda x, y: op.matmul(x, op.broadcast_to(y, (5, 8, 6))), (5, 7, 8), (8, 6))


def with_moved_constants() -> Any:
    """A product with a transposed constant."""
    op = _tvm.relax.op
    return _graph(lambda x: op.matmul(x, op.permute_dims(_weights(4, 8))), (6, 8))


def with_zero_factors() -> Any:
    """A product with the number 0."""
    return _graph(lambda x: _tvm.relax.op.multiply(x, _tvm.relax.const(0.0, "float32")), (6, 8))


def with_channels_last() -> Any:
    """Two convolutions: the permutations at their ends move less than a quarter of what they write."""
    op = _tvm.relax.op.nn
    return _graph(lambda x: op.conv2d(op.conv2d(x, _weights(64, 3, 3, 3)), _weights(4, 64, 3, 3)), (1, 3, 18, 18))


def with_fast_convolutions() -> Any:
    """Three taps along one dimension, whatever the transformation costs."""
    layouts = {"data_layout": "NWC", "kernel_layout": "OIW"}
    return _graph(lambda x: _tvm.relax.op.nn.conv1d(x, _weights(8, 4, 3), padding=1, **layouts), (1, 6, 4))


def with_even_channels() -> Any:
    """Three channels, which two columns have in an even number."""
    layouts = {"data_layout": "NWC", "kernel_layout": "OIW"}
    return _graph(lambda x: _tvm.relax.op.nn.conv1d(x, _weights(64, 3, 4), strides=2, **layouts), (1, 16, 3))


def with_group_norms_in_two_passes() -> Any:
    """A group norm with channels first."""
    group_norm = partial(_tvm.relax.op.nn.group_norm, num_groups=2, channel_axis=1, axes=[2])
    return _graph(lambda x, y, z: group_norm(x, y, z), (2, 8, 5), (8,), (8,))


def with_joint_projections() -> Any:
    """Two products of one input with constant matrices, whose parts are transposed."""
    op = _tvm.relax.op

    def write(x: Any) -> Any:
        return op.add(*(op.permute_dims(op.matmul(x, _weights(6, 8))) for _ in range(2)))

    return _graph(write, (5, 6))


def with_late_reshapes() -> Any:
    """What is done to the elements of a product behind a reshape."""
    op = _tvm.relax.op
    return _graph(lambda x, y: op.nn.relu(op.reshape(op.matmul(x, y), (2, 3, 4))), (6, 5), (5, 4))


def with_fused_attention() -> Any:
    """Attention of 32 queries to 33 keys, which are the values, too, with a mask."""
    op = _tvm.relax.op

    def write(x: Any, y: Any, z: Any) -> Any:
        scores = op.matmul(x, op.permute_dims(y, [0, 2, 1]))
        return op.matmul(op.nn.softmax(op.add(scores, z)), y)

    return _graph(write, (2, 32, 4), (2, 33, 4), (2, 32, 33))


def with_grouped_heads() -> Any:
    """Four queries for two keys each, which are repeated and scaled."""
    op = _tvm.relax.op

    def write(x: Any, y: Any) -> Any:
        repeated = op.reshape(op.broadcast_to(op.expand_dims(y, 1), (2, 2, 5, 3)), (4, 5, 3))
        return op.matmul(x, op.multiply(op.permute_dims(repeated, [0, 2, 1]), _tvm.relax.const(0.5)))

    return _graph(write, (4, 1, 3), (2, 5, 3))


def with_transposed_factors() -> Any:
    """A product with a transposed matrix."""
    op = _tvm.relax.op
    return _graph(lambda x, y: op.matmul(x, op.permute_dims(y)), (7, 5), (4, 5))


def with_room() -> Any:
    """A convolution with 13 channels, for vectors of 16."""
    return _graph(lambda x: _tvm.relax.op.nn.conv1d(x, _weights(13, 4, 3), strides=2), (1, 4, 33))


def with_pools_by_dimension() -> Any:
    """Means of windows of two rows and of two or three columns, which overlap."""
    return _graph(lambda x: _tvm.relax.op.nn.adaptive_avg_pool2d(x, (2, 5)), (1, 4, 4, 7))


def with_infinite_padding() -> Any:
    """A largest of three, padded at both ends."""
    pool = partial(_tvm.relax.op.nn.max_pool1d, pool_size=3, padding=1)
    return _tvm.relax.transform.LegalizeOps()(_graph(lambda x: pool(x), (1, 4, 6)))


def with_stacks_apart() -> Any:
    """Five tensors one after the other; what four are joined to stays as it is."""
    relax, op = _tvm.relax, _tvm.relax.op

    def write(x: Any) -> Any:
        return op.concat([op.concat([x] * 4, 0), *[x] * 4], 0)

    legal = (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern())
    return _tvm.transform.Sequential(legal)(_graph(write, (8, 64)))


def with_limited_recomputation() -> Any:
    """Eight sums of a value with itself: the seventh has 128 terms and is read twice."""
    relax = _tvm.relax

    def write(x: Any) -> Any:
        for _ in range(8):
            x = relax.op.add(x, x)
        return x

    legal = (relax.transform.Normalize(), relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern())
    return _tvm.transform.Sequential(legal)(_graph(write, (4,)))


def with_gates_apart() -> Any:
    """A row of a product that scales every row of a tensor."""
    relax, op = _tvm.relax, _tvm.relax.op

    def write(x: Any, y: Any, z: Any) -> Any:
        return op.multiply(op.sigmoid(op.matmul(x, y)), z)

    legal = (relax.transform.Normalize(), relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern())
    return _tvm.transform.Sequential(legal)(_graph(write, (1, 8), (8, 16), (4, 16)))


def with_joined_small_kernels() -> Any:
    """Three kernels of one half each: two tensors, of which the second reads the first."""
    relax, op = _tvm.relax, _tvm.relax.op
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            halves = builder.emit(op.split(x, 2, -1))
            state = builder.emit(op.add(halves[0], halves[1]))
            hidden = builder.emit(op.multiply(state, op.tanh(halves[0])))
            result = builder.emit_output(relax.Tuple([state, hidden]))
        builder.emit_func_output(result)
    fused = (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps())
    return _tvm.transform.Sequential(fused)(builder.get())


def with_simple_indices() -> Any:
    """A reshape there and back in one function."""
    x = _tvm.te.placeholder((4, 28), name="x")
    y = _tvm.te.compute((4, 28), lambda i, j: x[(j // 28 + i) % 4, j % 28], name="y")
    return _tvm.IRModule({"main": _tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "main")})


def with_marks() -> Any:
    """A product with a constant matrix."""
    return _tvm.relax.transform.LegalizeOps()(_graph(lambda x: _tvm.relax.op.matmul(x, _weights(5, 4)), (6, 5)))


MINIMAL: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        with_total_order,
        with_searched_boundaries,
        with_wide_constants,
        with_wide_norms,
        with_safe_indices,
        with_row_scatters,
        with_absorbed_pads,
        with_folded_batch_norms,
        in_phases,
        without_equal_expressions,
        with_shared_factors,
        with_moved_constants,
        with_computed_constants,
        with_zero_factors,
        with_channels_last,
        with_fast_convolutions,
        with_even_channels,
        with_group_norms_in_two_passes,
        with_joint_projections,
        with_late_reshapes,
        with_fused_attention,
        with_grouped_heads,
        with_narrow_tensors,
        with_own_conversions,
        with_bfloat16_factors,
        with_flat_convolutions,
        with_transposed_factors,
        with_room,
        with_pools_by_dimension,
        with_infinite_padding,
        with_stacks_apart,
        with_gates_apart,
        with_limited_recomputation,
        with_joined_small_kernels,
        with_simple_indices,
        with_marks,
    )
}


def _rewrite(name: str) -> Callable[[Any], Any]:
    """Return the rewrite of that name, for vectors of 512 bits."""
    if name == "with_room":
        return lambda module: rewrites.with_room(module, _WIDTH)
    if name == "with_even_channels":
        return lambda module: rewrites.with_even_channels(module, PAIRS_PRECISION)
    if name == "with_narrow_tensors":
        return lambda module: rewrites.with_narrow_tensors(module, PAIRS_PRECISION, PAIRS_PRECISION)
    if name == "with_bfloat16_factors":
        return lambda module: rewrites.with_bfloat16_factors(module, target_device(described_target("zen5", cores=2)))
    if name == "with_flat_convolutions":
        target = described_target("emerald-rapids", cores=2)
        return lambda module: rewrites.with_flat_convolutions(module, target_device(target))
    if name == "with_fused_attention":
        return lambda module: rewrites.with_fused_attention(module, target_device(_AVX512))
    if name == "with_marks":
        return constants.with_marks
    if name == "with_searched_boundaries":
        return lambda module: rewrites.with_searched_boundaries(module, on_cpu=True)
    rewrite: Callable[[Any], Any] = getattr(simplify_indices if name == "with_simple_indices" else rewrites, name)
    return rewrite


def test_every_rewrite_has_a_text() -> None:
    """The package's rewrites and all other felixlike functions in the list of passes have a minimal function here."""
    imported_names = [
        value.__name__
        for value in vars(pipeline).values()
        if isinstance(value, FunctionType) and value.__module__.startswith("felixlike.frontend.")
    ]
    assert set(MINIMAL) == {*rewrites.__all__, *imported_names} - {
        "fuse",
        "fuse_dynamic",
        "rewrites_of",
        "function_pass",
        "layers_of",
        "_fused",
        "_products",
        "_run",
        "relax_pass",
    }


@pytest.mark.parametrize("name", MINIMAL)
def test_text_before_and_after(name: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "with_fast_convolutions":
        monkeypatch.setattr(winograd, "LEAST_SPEEDUP", 0.0)
    before = MINIMAL[name]()
    after = _rewrite(name)(before)
    assert not _tvm.structural_equal(before, after)
    golden(f"rewrites/{name}", before_and_after(MINIMAL[name].__doc__ or "", before, after))
