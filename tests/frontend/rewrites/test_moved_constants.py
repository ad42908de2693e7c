"""Transposed and reshaped weights are computed when a model is imported, without compiling anything."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from felixlike import _tvm
from felixlike.frontend import rewrites
from felixlike.frontend.rewrites.rewriting import is_constant


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_chain_becomes_one_constant(dtype: str) -> None:
    relax = _tvm.relax
    weight = np.arange(24).reshape(2, 3, 4).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((8, 3), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(relax.op.permute_dims(relax.const(weight, dtype), [2, 0, 1]))
            read = builder.emit(relax.op.reshape(moved, (8, 3)))
            both = builder.emit_output(relax.op.add(x, read))
        builder.emit_func_output(both)
    after = relax.transform.FoldConstant()(rewrites.with_moved_constants(builder.get()))
    ((binding,),) = (block.bindings for block in after["main"].body.blocks)
    (constant,) = (argument for argument in binding.value.args if is_constant(argument))
    assert str(constant.ty.dtype) == dtype
    np.testing.assert_array_equal(constant.value.numpy(), weight.transpose(2, 0, 1).reshape(8, 3))


def test_integers_are_left() -> None:
    relax = _tvm.relax
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 2), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(relax.op.permute_dims(relax.const(np.ones((2, 3), "int64"), "int64")))
            both = builder.emit_output(relax.op.add(x, moved))
        builder.emit_func_output(both)
    module = builder.get()
    assert _tvm.structural_equal(rewrites.with_moved_constants(module), module)
