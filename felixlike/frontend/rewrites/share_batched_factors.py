"""Read factors that are equal for all matrices of a batch in place, instead of copying them for each.

    matmul(A, broadcast_to(B, [T, K, N]))   →   matmul(A, B)

PyTorch makes a batch of equal matrices for a linear layer whose input is not contiguous. A constant matrix would be
folded into as many copies as the batch has.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, is_constant, operator, rewritten, shape


def with_shared_factors(module: Any) -> Any:
    """Make products broadcast their factors implicitly.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _shared)


def _shared(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace broadcast factors of a matmul by their sources where the batch stays the same."""
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
            continue  # transposing once is cheaper than for every matrix
        tried = [*factors[:place], source, *factors[place + 1 :]]
        if len(shape(source)) >= 2 and shape(source)[-2:] == shape(factor)[-2:] and _batch(tried) == _batch(factors):
            factors = tried
    if all(new.same_as(old) for new, old in zip(factors, expression.args, strict=True)):
        return None
    return _tvm.relax.op.matmul(*map(rewriter.new, factors), out_dtype=expression.attrs.out_dtype)


def _batch(factors: list[Any]) -> list[Any]:
    """Return the batch dimensions of a product, innermost first."""
    outer: list[list[Any]] = [list(reversed(shape(factor)[:-2])) for factor in factors]
    return [
        next((size for size in sizes if not (isinstance(size, int) and size == 1)), 1)
        for sizes in zip_longest(*outer, fillvalue=1)
    ]
