"""Merge products of one input with constants into one product: queries, keys and values of attention.

    Q, K, V = X · A + a, X · B + b, X · C + c    →    Q, K, V = columns of X · [A B C] + [a b c]

X is read once, and one large product uses the machine better than three small ones. This applies only if the parts
are transposed anyway, as splitting into heads does. Otherwise each part would need a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    constant_of,
    is_constant,
    operator,
    rewritten,
    shape,
    tensor_of,
)


@dataclass(frozen=True, slots=True)
class Projection:
    """Describe a product with a constant matrix.

    Attributes:
        product: The matmul.
        bias: Vector that is added to it, or None.
        result: The sum, or the product without a bias.
    """

    product: Any
    bias: Any | None
    result: Any

    @property
    def width(self) -> int:
        """Number of columns."""
        return shape(self.product.args[1])[1]


def with_joint_projections(module: Any) -> Any:
    """Merge products of one input with constant matrices if their results are transposed.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_part, {}))


def _part(done: dict[int | None, Any], expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace a projection by its columns of the merged product."""
    factors = [expression, *map(known.value, expression.args)] if operator(expression) in ("matmul", "add") else []
    product = next((f for f in factors if operator(f) == "matmul"), None)
    if product is None:
        return None
    source, block = product.args[0], known.block(product)
    candidates = [
        _projection(r, known) for r in known.readers(source) if operator(r) == "matmul" and known.block(r) == block
    ]
    this = next((p for p in candidates if p is not None and expression.same_as(p.result)), None)
    if this is None:
        return None
    joint = [p for p in candidates if p is not None and _alike(p, this)]
    if len(joint) == 1:
        return None
    key = _tvm.identity(joint[0].product)
    if key not in done:
        done[key] = _joined(joint, rewriter)
    begin = sum(p.width for p in joint[: [p.result.same_as(expression) for p in joint].index(True)])
    axis = len(shape(expression)) - 1
    return _tvm.relax.op.strided_slice(done[key], axes=[axis], begin=[begin], end=[begin + this.width])


def _projection(product: Any, known: Bindings) -> Projection | None:
    """Return the projection that begins with a matmul, if its matrix is constant and its result is only transposed."""
    weights = product.args[1]
    if not is_constant(weights) or len(shape(weights)) != 2:
        return None
    projection = Projection(product, None, product)
    readers = known.readers(known.variable(product))
    if len(readers) == 1 and operator(readers[0]) == "add":
        biases = [a for a in readers[0].args if is_constant(a) and shape(a) == (projection.width,)]
        projection = Projection(product, biases[0], readers[0]) if biases else projection
    return projection if _is_moved(known.variable(projection.result), known) else None


def _is_moved(variable: Any, known: Bindings) -> bool:
    """Return whether every reader transposes the variable, directly or after reshapes."""
    readers = known.readers(variable)
    return bool(readers) and all(
        operator(r) == "permute_dims" or (operator(r) == "reshape" and _is_moved(known.variable(r), known))
        for r in readers
    )


def _alike(one: Projection, other: Projection) -> bool:
    """Return whether two projections can be merged."""
    same_types = str(one.product.ty.dtype) == str(other.product.ty.dtype)
    return same_types and (one.bias is None) == (other.bias is None)


def _joined(projections: list[Projection], rewriter: Rewriter) -> Any:
    """Emit the merged product and return its variable."""
    import torch

    def side_by_side(constants: list[Any]) -> Any:
        return constant_of(torch.cat([tensor_of(c) for c in constants], -1))

    first = projections[0].product
    weights = side_by_side([p.product.args[1] for p in projections])
    call = _tvm.relax.Call(first.op, [rewriter.new(first.args[0]), weights], first.attrs)
    joined = rewriter.builder.emit(call)
    biases = [p.bias for p in projections if p.bias is not None]
    return rewriter.builder.emit(_tvm.relax.op.add(joined, side_by_side(biases))) if biases else joined
