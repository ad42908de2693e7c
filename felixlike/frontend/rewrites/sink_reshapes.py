"""Move reshapes behind elementwise operators, so that these join the kernel of the contraction before them.

    gelu(reshape(A · B + b))           →   reshape(gelu(A · B + b))
    reshape(float32(X))                →   float32(reshape(X))
    add(reshape(A · B + b), residual)  →   reshape(add(A · B + b, reshape(residual)))

TVM fuses elementwise operators into a contraction, but not behind a reshape, where each is a task and a pass over
memory. Consecutive reshapes become one, and a reshape to the same shape is removed. Remaining reshapes are views.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.half_values import is_widening
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    constant,
    is_constant,
    operator,
    reached,
    settled,
    shape,
)

UNARY = {
    *("astype", "clip", "erf", "exp", "negative", "nn.gelu", "nn.gelu_tanh", "nn.relu", "nn.silu", "sigmoid", "sqrt"),
    "tanh",
}
"""Elementwise operators of one tensor."""

BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum"}
"""Elementwise operators of two tensors."""

_CONTRACTIONS = {"matmul", "call_tir"} | {f"nn.conv{rank}d" for rank in (1, 2, 3)}


def with_late_reshapes(module: Any) -> Any:
    """Move reshapes between contractions and elementwise operators behind the latter.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return settled(module, _late)


def _late(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Move a reshape behind an elementwise operator, and simplify reshapes, broadcasts and x · sigmoid(x)."""
    name, op = operator(expression), _tvm.relax.op
    if name == "broadcast_to" and shape(expression.args[0]) == shape(expression):
        return rewriter.new(expression.args[0])
    if name == "reshape":
        return _joined(expression, known, rewriter)
    if name == "multiply" and (gate := _gated(expression, known)) is not None:
        return op.nn.silu(rewriter.new(gate))
    if name not in UNARY | BINARY or is_widening(expression):
        return None
    tensors = [argument for argument in expression.args if hasattr(argument.ty, "shape")]
    # If several operands are contractions, the first decides the shape. Otherwise their reshapes would alternate.
    moved = next((a for a in tensors if _is_whole(a, expression) and _follows_contraction(a, known)), None)
    if moved is None or not _moves(moved, expression, known):
        return None
    inner = known.value(moved).args[0]

    def operand(argument: Any) -> Any:
        if argument.same_as(moved):
            return rewriter.new(inner)
        if _is_row(argument, expression):
            return constant(argument.value.numpy().reshape(-1))
        new = rewriter.new(argument)
        return rewriter.builder.emit(op.reshape(new, shape(inner))) if _is_whole(argument, expression) else new

    arguments = [operand(argument) for argument in expression.args]
    call = _tvm.relax.Call(expression.op, arguments, expression.attrs)
    return op.reshape(rewriter.builder.emit(call), shape(expression))


def _gated(product: Any, known: Bindings) -> Any:
    """Return x of x · sigmoid(x), which is one operator of one tensor, or None for other products."""
    for x, other in (product.args, reversed(product.args)):
        gate = known.value(other)
        if operator(gate) == "sigmoid" and gate.args[0].same_as(x):
            return x
    return None


def _moves(argument: Any, expression: Any, known: Bindings) -> bool:
    """Return whether an operand that follows a contraction is a reshape, which can move behind the operator.

    Other operands must have the operator's shape or be one number, or a constant row if the reshape keeps rows.
    """
    value = known.value(argument)
    if operator(value) != "reshape":
        return False
    others = [a for a in expression.args if not a.same_as(argument) and hasattr(a.ty, "shape")]
    rows = shape(value)[-1:] == shape(value.args[0])[-1:]
    return all(
        _is_whole(a, expression) or (is_constant(a) and math.prod(shape(a)) == 1) or (rows and _is_row(a, expression))
        for a in others
    )


def _follows_contraction(argument: Any, known: Bindings) -> bool:
    """Return whether an operand is a contraction or a reshape of one, without readers that are not fused with it."""
    value = known.value(argument)
    source = value.args[0] if operator(value) == "reshape" else argument
    return _stays_within(argument, known) and _stays_within(source, known) and _of_contraction(source, known)


def _stays_within(variable: Any, known: Bindings) -> bool:
    """Return whether a variable has one reader, or elementwise ones only, as in x · tanh(x + x³)."""
    return known.once(variable) or all(
        operator(reader) in UNARY | BINARY | {"reshape"} for reader in known.readers(variable)
    )


def _of_contraction(variable: Any, known: Bindings) -> bool:
    """Return whether a variable is a contraction, or elementwise operators on one whose other readers are such."""

    def operands(variable: Any) -> list[Any]:
        value = known.value(variable)
        if operator(value) not in UNARY | BINARY:
            return []
        return [a for a in value.args if _is_whole(a, value) and _stays_within(a, known)]

    return any(operator(known.value(each)) in _CONTRACTIONS for each in reached(variable, operands))


def _is_whole(argument: Any, expression: Any) -> bool:
    """Return whether an operand has the operator's shape."""
    return hasattr(argument.ty, "shape") and shape(argument) == shape(expression)


def _is_row(argument: Any, expression: Any) -> bool:
    """Return whether an operand is a constant along the last dimension alone."""
    return is_constant(argument) and shape(argument)[-1:] == (math.prod(shape(argument)),) == shape(expression)[-1:]


def _joined(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Merge a reshape with the one before it, or remove one that changes nothing."""
    source = expression.args[0]
    if shape(source) == shape(expression):
        return rewriter.new(source)
    before = known.value(source)
    if is_widening(before):  # a conversion of a view is fused into the kernel that reads it
        view = _tvm.relax.op.reshape(rewriter.new(before.args[0]), shape(expression))
        return _tvm.relax.Call(before.op, [rewriter.builder.emit(view)], before.attrs)
    if operator(before) != "reshape":
        return None
    if shape(before.args[0]) == shape(expression):
        return rewriter.new(before.args[0])
    return _tvm.relax.op.reshape(rewriter.new(before.args[0]), shape(expression))
