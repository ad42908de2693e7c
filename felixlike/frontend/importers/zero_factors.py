"""Keep products with the number 0.

    x · 0   →   x · [0]

A product with 0 is NaN for NaN and infinities, and -0 for other signs. TVM's legalisation turns a constant without
dimensions into a number, and TVM takes a product with the number 0 for 0. It does not look at elements of tensors.

Input: a Relax module with operators, parameters bound as constants. Output: the same module with such factors as
tensors of one element.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    constant,
    is_constant,
    operator,
    rewritten,
    shape,
)
from felixlike.frontend.rewrites.views import number


def with_zero_factors(module: Any) -> Any:
    """Return the module with floating-point factors that are the number 0 as tensors of one element."""
    return rewritten(module, _kept)


def _kept(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return a product whose constant factor is a tensor, or None for other expressions."""
    if operator(expression) != "multiply" or "float" not in str(expression.ty.dtype):
        return None
    factors = [known.value(factor) for factor in expression.args]
    if not any(is_constant(factor) and not shape(factor) and not number(factor) for factor in factors):
        return None
    op = _tvm.relax.op
    first, second = (
        constant(factor.value.numpy().reshape(1)) if is_constant(factor) and not shape(factor) else rewriter.new(given)
        for factor, given in zip(factors, expression.args, strict=True)
    )
    product = op.multiply(first, second)
    return product if shape(expression) else op.reshape(rewriter.builder.emit(product), ())
