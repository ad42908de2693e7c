"""Factors that are the same for all matrices of a batch are read where they are, not copied once for each.

    matmul(A, broadcast_to(B, [T, K, N]))   →   matmul(A, B)

PyTorch makes batches of equal matrices of a linear layer whose input is not contiguous. A constant one would be folded
into as many copies as the batch has.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, is_constant, operator, rewritten, shape


def with_shared_factors(module: Any) -> Any:
    """A Relax module whose products broadcast their factors themselves."""
    return rewritten(module, _shared)


def _shared(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    if operator(expression) != "matmul":
        return None
    factors = list(expression.args)
    for place, factor in enumerate(expression.args):
        value = known.value(factor)
        if operator(value) != "broadcast_to":
            continue
        source = value.args[0]
        transposed = known.value(source)
        if operator(transposed) == "permute_dims" and not is_constant(transposed.args[0]):
            continue  # better transposed once than for every matrix
        tried = [*factors[:place], source, *factors[place + 1 :]]
        if len(shape(source)) >= 2 and shape(source)[-2:] == shape(factor)[-2:] and _batch(tried) == _batch(factors):
            factors = tried
    if all(new.same_as(old) for new, old in zip(factors, expression.args, strict=True)):
        return None
    return _tvm.relax.op.matmul(*map(rewriter.new, factors), out_dtype=expression.attrs.out_dtype)


def _batch(factors: list[Any]) -> list[Any]:
    """The dimensions of a product before those of its matrices, innermost first."""
    outer: list[list[Any]] = [list(reversed(shape(factor)[:-2])) for factor in factors]
    return [
        next((size for size in sizes if not (isinstance(size, int) and size == 1)), 1)
        for sizes in zip_longest(*outer, fillvalue=1)
    ]
