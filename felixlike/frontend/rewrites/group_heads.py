"""Multiply all matrices of a batch that share a factor with it at once, where the factor was repeated for each.

    matmul(Q[b, h, m, d], repeat(K[b, h / g, d, n], g))    →    matmul(Q[b, h / g, g · m, d], K[b, h / g, d, n])

Attention with grouped heads repeats keys and values for the g queries of a group. While text is generated, these are
all of the cache, in every layer of every token. A number that keys are multiplied by goes to the queries, which are
fewer. Rewrites before this one have made one kernel of attention with many queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    axes_of,
    is_constant,
    operator,
    rewritten,
    shape,
)
from felixlike.frontend.rewrites.views import is_number, number


def with_grouped_heads(module: Any) -> Any:
    """Make products read repeated factors where they are repeated from.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _grouped)


@dataclass(frozen=True, slots=True)
class _Source:
    """What the second factor of a product is computed from.

    Attributes:
        expression: A tensor. Its last two dimensions are those of a matrix.
        batch: Its other dimensions, without the one that is repeated.
        group: How often each matrix is repeated for its neighbours in the batch.
        transposed: Whether the factor's matrices are transposed.
        factor: Number that they are multiplied by.
    """

    expression: Any
    batch: tuple[Any, ...]
    group: Any
    transposed: bool
    factor: float


def _grouped(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace a matmul whose second factor repeats matrices or is multiplied by a number."""
    if operator(expression) != "matmul":
        return None
    first, second = expression.args
    sizes, result = shape(first), shape(expression)
    if len(sizes) < 3 or len(sizes) != len(shape(second)) or not _same(sizes[:-2], shape(second)[:-2]):
        return None
    source = _source(second, known)
    few = _fewer(sizes[-2], shape(second)[-1])
    if source is None or (source.group == 1 and (source.factor == 1 or not few)):
        return None
    relax = _tvm.relax
    matrices = relax.op.reshape(rewriter.new(source.expression), [*source.batch, *shape(source.expression)[-2:]])
    if source.transposed:
        rank = len(source.batch) + 2
        matrices = relax.op.permute_dims(rewriter.builder.emit(matrices), [*range(rank - 2), rank - 1, rank - 2])
    queries = relax.op.reshape(rewriter.new(first), [*source.batch, source.group * sizes[-2], sizes[-1]])
    if source.factor != 1:
        times = relax.const(source.factor, str(first.ty.dtype))
        queries = relax.op.multiply(rewriter.builder.emit(queries), times)
    product = relax.op.matmul(
        rewriter.builder.emit(queries), rewriter.builder.emit(matrices), out_dtype=expression.attrs.out_dtype
    )
    return relax.op.reshape(rewriter.builder.emit(product), result)


def _source(expression: Any, known: Bindings) -> _Source | None:
    """Trace a factor back to the matrices that are repeated, or that are multiplied by a number; None for constants."""
    at = _Source(expression, shape(expression)[:-2], 1, False, 1.0)
    while at.group == 1:
        value = known.value(at.expression)
        before = _TRACES[operator(value)](value, at) if operator(value) in _TRACES else None
        if before is None:
            break
        at = before
    return None if is_constant(at.expression) else at


def _permuted(value: Any, at: _Source) -> _Source | None:
    """Trace a transposition of matrices."""
    axes, plain = axes_of(value), list(range(len(shape(value))))
    if axes == plain:
        return replace(at, expression=value.args[0])
    swapped = [*axes[:-2], axes[-1], axes[-2]] == plain
    return replace(at, expression=value.args[0], transposed=not at.transposed) if swapped else None


def _multiplied(value: Any, at: _Source) -> _Source | None:
    """Trace a multiplication by a number. One above 1 could overflow elsewhere than in the original."""
    tensor, times = value.args
    if not is_number(times) or not _same(shape(tensor), shape(value)) or not 0 < abs(number(times)) <= 1:
        return None
    return replace(at, expression=tensor, factor=at.factor * float(number(times)))


def _reshaped(value: Any, at: _Source) -> _Source | None:
    """Trace a change of the batch's dimensions."""
    before = shape(value.args[0])
    kept = len(before) > 2 and _same(before[-2:], shape(value)[-2:])
    return replace(at, expression=value.args[0], batch=before[:-2]) if kept else None


def _repeated(value: Any, at: _Source) -> _Source | None:
    """Trace a repetition of each matrix for its neighbours in the batch."""
    before, after = shape(value.args[0]), shape(value)
    if len(before) < 4 or before[-3] != 1 or not isinstance(after[-3], int):
        return None
    if not _same([*before[:-3], *before[-2:]], [*after[:-3], *after[-2:]]):
        return None
    return replace(at, expression=value.args[0], batch=before[:-3], group=after[-3])


_TRACES: dict[str, Callable[[Any, _Source], _Source | None]] = {
    "permute_dims": _permuted,
    "multiply": _multiplied,
    "reshape": _reshaped,
    "expand_dims": _reshaped,
    "squeeze": _reshaped,
    "broadcast_to": _repeated,
}
"""How each operator is traced, from its value and what was found behind it."""


def _fewer(rows: Any, columns: Any) -> bool:
    """Return whether a product is known to have fewer rows than columns, or a known number of rows alone."""
    return isinstance(rows, int) and (not isinstance(columns, int) or rows < columns)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two shapes are equal. Dynamic sizes are equal only if they are the same expression."""
    return len(some) == len(others) and all(_tvm.structural_equal(a, b) for a, b in zip(some, others, strict=True))
