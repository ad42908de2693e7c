"""Make products read transposed factors in place: transposed keys and the heads of attention.

    permute(X) · permute(Y)    →    Z[…, i, j] = Σ_k X[…] · Y[…],  indices in the order of X and Y

A separate transposition is a task and a pass over memory. Schedules copy a panel at a time where they need contiguous
data, in the order that they need. Constants are left alone: they are transposed once, at compile time. Operators that
change only dimensions of extent 1 may stand between transposition and product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, axes_of, is_constant, operator, rewritten, shape

Indices = list[Any]


@dataclass(frozen=True, slots=True)
class Factor:
    """Describe the origin of a factor.

    Attributes:
        source: Expression that the factor is computed from.
        shape: Shape of the factor.
        place: Maps indices of the factor to those of the source.
        transposed: Whether their order differs.
    """

    source: Any
    shape: tuple[int, ...]
    place: Callable[[Indices], Indices]
    transposed: bool


def with_transposed_factors(module: Any) -> Any:
    """Make matmuls read the sources of their transposed factors, if nothing else reads those factors.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _product)


def _product(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace a matmul with a transposed factor by a PrimFunc that reads the factor's source."""
    if operator(expression) != "matmul" or min(len(shape(a)) for a in expression.args) < 2:
        return None
    factors = [_factor(argument, known) for argument in expression.args]
    if not any(factor.transposed for factor in factors):
        return None
    result, dtype = shape(expression), str(expression.ty.dtype)
    return rewriter.builder.call_te(
        lambda a, b: _matmul((a, b), factors, result, dtype),
        *(rewriter.new(factor.source) for factor in factors),
        primfunc_name_hint="matmul",
    )


def _factor(argument: Any, known: Bindings) -> Factor:
    """Trace a factor back through transpositions and changes of dimensions of extent 1.

    Without a transposition the factor itself is returned.
    """
    plain = Factor(argument, shape(argument), lambda indices: indices, False)
    factor = plain
    while known.once(factor.source):
        value = known.value(factor.source)
        step = _permuted(value) if operator(value) == "permute_dims" else _resized(value)
        if step is None or is_constant(value.args[0]):
            break
        factor = Factor(
            value.args[0],
            factor.shape,
            lambda indices, before=factor.place, step=step: step(before(indices)),  # type: ignore[misc]
            factor.transposed or operator(value) == "permute_dims",
        )
    return factor if factor.transposed else plain


def _permuted(value: Any) -> Callable[[Indices], Indices]:
    """Return a map from indices of a transposed tensor to those of its source."""
    order = axes_of(value)
    return lambda indices: [indices[order.index(place)] for place in range(len(order))]


def _resized(value: Any) -> Callable[[Indices], Indices] | None:
    """Return a map from indices of a reshaped tensor to those of its source.

    Returns None unless only dimensions of extent 1 change.
    """
    if operator(value) not in ("reshape", "broadcast_to", "expand_dims", "squeeze"):
        return None
    after, before = shape(value), shape(value.args[0])
    if [n for n in after if n > 1] != [n for n in before if n > 1]:
        return None

    def place(indices: Indices) -> Indices:
        several = iter(i for i, extent in zip(indices, after, strict=True) if extent > 1)
        return [next(several) if extent > 1 else 0 for extent in before]

    return place


def _matmul(tensors: Sequence[Any], factors: Sequence[Factor], result: Sequence[int], dtype: str) -> Any:
    """Compute a product as TVM's relax.matmul does, but with factors read from their sources."""

    def read(number: int, batch: Sequence[Any], *last: Any) -> Any:
        factor = factors[number]
        count = len(factor.shape) - 2
        outer = [0 if n == 1 else i for n, i in zip(factor.shape, batch[len(batch) - count :], strict=False)]
        return tensors[number](*factor.place([*outer, *last])).astype(dtype)

    k = _tvm.te.reduce_axis((0, factors[0].shape[-1]), name="k")
    return _tvm.te.compute(
        list(result),
        lambda *at: _tvm.te.sum(read(0, at[:-2], at[-2], k) * read(1, at[:-2], k, at[-1]), axis=k),
        name="matmul",
    )
