"""Sizes that torch knows of a program's values, and TVM's importer does not find out by itself.

In: converters of an importer. Out: the same, whose values have the shapes that the graph says. torch.export works out
symbolic sizes with the ranges that were given: a slice up to T of 512 positions has T of them where T is at most 128.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from felixlike import _tvm

Converter = Callable[[Any, Any], Any]


def with_known_sizes(converters: Mapping[str, Converter]) -> dict[str, Converter]:
    """The converters, each followed by a cast to the shape in the graph where TVM has found none, or another one."""

    def knowing(convert: Converter) -> Converter:
        def converted(node: Any, importer: Any) -> Any:
            value = convert(node, importer)
            wanted = shape_of(node.meta.get("val"), importer)
            if wanted is None or not isinstance(value, _tvm.relax.Var) or not _differs(value, wanted):
                return value
            kind = _tvm.relax.TensorType(wanted, str(value.ty.dtype))
            return importer.block_builder.match_cast(value, kind)

        return converted

    return {name: knowing(convert) for name, convert in converters.items()}


def shape_of(value: Any, importer: Any) -> list[Any] | None:
    """The shape of a value of the graph in TVM's numbers and variables; None where it is no tensor, has no symbolic
    size, or one that is not understood."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    sizes: list[Any] = list(value.shape)
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return None
    found = [size_of(size, importer) for size in sizes]
    return None if any(size is None for size in found) else found


def size_of(size: Any, importer: Any) -> Any:
    """A size of the graph as a number or in TVM's variables; None for what is not understood."""
    return size if isinstance(size, int) else _size(size.node.expr, _variables(importer))


def _differs(value: Any, wanted: list[Any]) -> bool:
    shape = getattr(value.ty, "shape", None)
    if not isinstance(value.ty, _tvm.relax.TensorType):
        return False
    if not isinstance(shape, _tvm.relax.ShapeExpr):
        return True
    sizes = [_tvm.simplify(size - other) for size, other in zip(shape.values, wanted, strict=False)]
    return len(shape.values) == len(wanted) and any(
        not (isinstance(size, _tvm.tirx.IntImm) and int(size) == 0) for size in sizes
    )


def _variables(importer: Any) -> dict[str, Any]:
    """TVM's variables for symbolic sizes by name, as the inputs have them."""
    found: dict[str, Any] = {}
    for value in importer.env.values():
        shape = getattr(getattr(value, "ty", None), "shape", None)
        if isinstance(shape, _tvm.relax.ShapeExpr):
            for size in shape.values:
                if isinstance(size, _tvm.tirx.Var):
                    found.setdefault(str(size.name), size)
    return found


def _size(expression: Any, variables: Mapping[str, Any]) -> Any:
    """A size of sympy's as TVM's; None for what is neither a number, a symbol, nor a sum or product of these."""
    if expression.is_Integer:
        return _tvm.tirx.const(int(expression), "int64")
    if expression.is_Symbol:
        return variables.get(str(expression))
    parts = [_size(part, variables) for part in expression.args]
    if not (expression.is_Add or expression.is_Mul) or any(part is None for part in parts):
        return None
    first, *others = parts
    for part in others:
        first = first + part if expression.is_Add else first * part
    return first
