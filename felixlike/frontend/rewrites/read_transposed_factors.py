"""Products read transposed factors where they lie: queries times transposed keys, heads of attention.

    permute(X) · permute(Y)    →    Z[…, i, j] = Σ_k X[…] · Y[…],  indices in the order of X and Y

A transposition of its own is a task and a pass over memory. What a schedule needs side by side it copies, a panel at a
time, and then into the order that suits it. Constants are left alone: they are transposed once, when compiled.
Between transposition and product there may be what changes nothing but dimensions of extent 1.
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
    """Where a factor comes from.  source: an expression.  shape: of the factor.  place: indices of the factor → of the
    source.  transposed: whether their order differs."""

    source: Any
    shape: tuple[int, ...]
    place: Callable[[Indices], Indices]
    transposed: bool


def with_transposed_factors(module: Any) -> Any:
    """A Relax module whose matmuls read what their factors are transposed from, if nothing else reads those."""
    return rewritten(module, _product)


def _product(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
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
    """A factor as far back as transpositions and dimensions of extent 1 lead; itself if none is transposed."""
    plain = Factor(argument, shape(argument), lambda indices: indices, False)
    found = plain
    while known.once(found.source):
        value = known.value(found.source)
        step = _permuted(value) if operator(value) == "permute_dims" else _resized(value)
        if step is None or is_constant(value.args[0]):
            break
        found = Factor(
            value.args[0],
            found.shape,
            lambda indices, before=found.place, step=step: step(before(indices)),  # type: ignore[misc]
            found.transposed or operator(value) == "permute_dims",
        )
    return found if found.transposed else plain


def _permuted(value: Any) -> Callable[[Indices], Indices]:
    """Indices of a transposed tensor → of the tensor."""
    order = axes_of(value)
    return lambda indices: [indices[order.index(place)] for place in range(len(order))]


def _resized(value: Any) -> Callable[[Indices], Indices] | None:
    """Indices of a tensor that is reshaped by dimensions of extent 1 alone → of the tensor; None of all others."""
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
    """As TVM computes relax.matmul, but for where factors are read."""

    def read(number: int, batch: Sequence[Any], *last: Any) -> Any:
        factor = factors[number]
        count = len(factor.shape) - 2
        own = [0 if n == 1 else i for n, i in zip(factor.shape, batch[len(batch) - count :], strict=False)]
        return tensors[number](*factor.place([*own, *last])).astype(dtype)

    k = _tvm.te.reduce_axis((0, factors[0].shape[-1]), name="k")
    return _tvm.te.compute(
        list(result),
        lambda *at: _tvm.te.sum(read(0, at[:-2], at[-2], k) * read(1, at[:-2], k, at[-1]), axis=k),
        name="matmul",
    )
