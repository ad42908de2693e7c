"""Tests for tensors of more than 2³¹ elements: indexed with 64 bits, or refused. None of that size is allocated."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.faulty import te

from felixlike import _tvm, codegen, symbolic
from felixlike.errors import InvalidModel
from felixlike.frontend import import_model
from felixlike.frontend.extract import extract
from felixlike.frontend.rewrites.pipeline import fuse
from felixlike.hardware import resolve_target

ROWS, COLUMNS = 70000, 40000
TARGET = resolve_target("cpu")


def relax_module(operator: Any, *shapes: tuple[int, ...]) -> Any:
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(operator(*inputs))
        builder.emit_func_output(result)
    return builder.get()


def indices_of_large(func: Any) -> list[Any]:
    """Return all indices into buffers of more than 2³¹ elements."""
    large_indices: list[Any] = []

    def collect(buffer: Any, indices: Any) -> None:
        sizes = [int(size) for size in buffer.shape]
        if len(sizes) == 2 and sizes[0] * sizes[1] > 2**31:
            large_indices.extend(index for index, size in zip(indices, sizes, strict=True) if size > 1)

    _tvm.structural_walk(
        func.body,
        (
            (_tvm.ir.TensorLoad, lambda node: collect(node.source, node.indices)),
            (_tvm.tirx.BufferStore, lambda node: collect(node.buffer, node.indices)),
        ),
    )
    return large_indices


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (lambda x: _tvm.relax.op.nn.softmax(x), [(ROWS, COLUMNS)]),
        (lambda x: _tvm.relax.op.add(x, x), [(ROWS, COLUMNS)]),
        (lambda x, y: _tvm.relax.op.matmul(x, y), [(ROWS, 128), (128, COLUMNS)]),
    ],
)
def test_indices_of_imported_models_have_64_bits(operator: Any, shapes: Any) -> None:
    ((task,), _) = extract(fuse(relax_module(operator, *shapes), TARGET)[0], TARGET)
    sketches = symbolic.sketches(task)
    scheduled = [sketch.schedule(sketch.sample(1, 0)[0]).mod for sketch in sketches[:2]]
    for module in (task.module, *scheduled):
        indices = indices_of_large(module["main"])
        assert indices
        assert {str(index.ty.dtype) for index in indices} == {"int64"}
        code = codegen.compile_primfuncs(module, TARGET).mod.inspect_source("ll")
        assert "getelementptr" in code
        assert not re.findall(r"getelementptr[^\n]*, i32 %", code)


def test_primfuncs_of_32_bit_sizes_are_refused() -> None:
    """Such PrimFuncs are refused at import, because TVM fails only when it compiles them after the search."""
    x = te.placeholder((ROWS, COLUMNS), name="X")
    func = te.create_prim_func([x, te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] + 1.0, name="Y")])
    with pytest.raises(InvalidModel, match=r"^Y: buffer X .*\b2800000000\b.*\b32-bit\b"):
        import_model(func)


def outer_product_sums() -> Any:
    """Return row sums of an outer product: small inputs and outputs, and a large intermediate buffer."""
    x, y = te.placeholder((ROWS,), name="X"), te.placeholder((COLUMNS,), name="Y")
    products = te.compute((ROWS, COLUMNS), lambda i, j: x[i] * y[j], name="P")
    k = te.reduce_axis((0, COLUMNS), name="k")
    return te.create_prim_func([x, y, te.compute((ROWS,), lambda i: te.sum(products[i, k], axis=k), name="S")])


def test_large_intermediate_buffers_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"buffer P .*\b2800000000\b"):
        import_model(outer_product_sums())
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    inner = builder.add_func(_tvm.without_attributes(outer_product_sums(), "global_symbol"), "sums")
    inputs = [relax.Var(name, relax.TensorType((size,), "float32")) for name, size in (("x", ROWS), ("y", COLUMNS))]
    with builder.function("main", inputs):
        with builder.dataflow():
            call = relax.call_tir(inner, inputs, relax.TensorType((ROWS,), "float32"))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    with pytest.raises(InvalidModel, match=r"^sums: buffer P .*\b2800000000\b"):
        import_model(builder.get())
