"""Give imported values the shapes that torch.export derived and TVM's importer cannot.

Input: converters of an importer. Output: converters whose values have the shapes in the graph. torch.export
simplifies symbolic sizes with the given ranges: a slice up to T of 512 positions has size T if T is at most 128.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from felixlike import _tvm

Converter = Callable[[Any, Any], Any]


def with_known_sizes(converters: Mapping[str, Converter]) -> dict[str, Converter]:
    """Follow each converter by a cast to the graph's shape where TVM infers none or another one."""

    def knowing(convert: Converter) -> Converter:
        def converted(node: Any, importer: Any) -> Any:
            value = convert(node, importer)
            shape = shape_of(node.meta.get("val"), importer)
            if shape is None or not isinstance(value, _tvm.relax.Var) or not _differs(value, shape):
                return value
            kind = _tvm.relax.TensorType(shape, str(value.ty.dtype))
            return importer.block_builder.match_cast(value, kind)

        return converted

    return {name: knowing(convert) for name, convert in converters.items()}


def shape_of(value: Any, importer: Any) -> list[Any] | None:
    """Return the shape of a graph value in TVM's numbers and variables.

    Returns None if the value is not a tensor, has no symbolic size, or has one that cannot be converted.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    sizes: list[Any] = list(value.shape)
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return None
    converted = [size_of(size, importer) for size in sizes]
    return None if any(size is None for size in converted) else converted


def size_of(size: Any, importer: Any) -> Any:
    """Return a size of the graph as a number or TVM expression, or None if it cannot be converted."""
    return size if isinstance(size, int) else _size(size.node.expr, importer)


def _differs(value: Any, expected: list[Any]) -> bool:
    """Return whether a value's shape is unknown or not provably equal to another one."""
    shape = getattr(value.ty, "shape", None)
    if not isinstance(value.ty, _tvm.relax.TensorType):
        return False
    if not isinstance(shape, _tvm.relax.ShapeExpr):
        return True
    sizes = [_tvm.simplify(size - other) for size, other in zip(shape.values, expected, strict=False)]
    return len(shape.values) == len(expected) and any(
        not (isinstance(size, _tvm.tirx.IntImm) and int(size) == 0) for size in sizes
    )


def _variable(name: str, importer: Any) -> Any:
    """Return TVM's variable for a symbolic size, or None. The inputs' shapes, which have nearly all, are read first."""
    for value in importer.env.values():
        shape = getattr(getattr(value, "ty", None), "shape", None)
        if isinstance(shape, _tvm.relax.ShapeExpr):
            for size in shape.values:
                if isinstance(size, _tvm.tirx.Var) and str(size.name) == name:
                    return size
    return None


def _size(expression: Any, importer: Any) -> Any:
    """Convert a sympy size to TVM. Returns None unless it consists of numbers, symbols, sums and products."""
    if expression.is_Integer:
        return _tvm.tirx.const(int(expression), "int64")
    if expression.is_Symbol:
        return _variable(str(expression), importer)
    parts = [_size(part, importer) for part in expression.args]
    if not (expression.is_Add or expression.is_Mul) or any(part is None for part in parts):
        return None
    first, *others = parts
    for part in others:
        first = first + part if expression.is_Add else first * part
    return first
