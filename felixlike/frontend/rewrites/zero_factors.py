"""Keep products with the number 0, and quotients.

    x · 0   →   x · [0]          x / 0   →   x / [0]

A product with 0 is NaN for NaN and infinities, and -0 where the signs differ. TVM's legalisation turns a constant
without dimensions into a number, and TVM takes a product with the number 0 for 0, and refuses to divide by it. It does
not look at elements of tensors.

Input: a Relax module with operators, parameters bound as constants. Output: the same module with such numbers as
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
    """Return the module with floating-point factors and divisors that are the number 0 as tensors of one element."""
    return rewritten(module, _kept)


def _kept(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return a product or quotient whose constant operand is a tensor, or None for other expressions."""
    name = operator(expression)
    if name not in ("multiply", "divide") or "float" not in str(expression.ty.dtype):
        return None
    operands = [known.value(operand) for operand in expression.args]
    numbers = [is_constant(operand) and not shape(operand) for operand in operands]
    if not any(is_number and not number(operand) for operand, is_number in zip(operands, numbers, strict=True)):
        return None
    first, second = (
        constant(operand.value.numpy().reshape(1)) if is_number else rewriter.new(given)
        for operand, is_number, given in zip(operands, numbers, expression.args, strict=True)
    )
    result = getattr(_tvm.relax.op, name)(first, second)
    return result if shape(expression) else _tvm.relax.op.reshape(rewriter.builder.emit(result), ())
