"""Convert chains of convolutions to channels last where that saves more than it costs.

    conv(relu(conv(x)))   →   permute(conv'(relu(conv'(permute(x)))))

With channels last, vectors of channels are contiguous. Kernels need not transpose their output tile, and depthwise
convolutions and poolings fill vectors for any stride and width. A single convolution would pay with two passes over
memory. The layouts of a function are therefore changed only if the remaining permutations move little compared with
what its convolutions write, or take little time compared with what fast convolutions (`winograd.py`) save.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    axes_of,
    constant,
    is_constant,
    operator,
    rewritten,
    settled,
    shape,
)
from felixlike.frontend.rewrites.sink_reshapes import BINARY, UNARY
from felixlike.frontend.rewrites.winograd import LAYOUTS, Plan, plan_of

MOST_MOVED = 0.25
"""Upper limit of the additional elements that permutations move, per element that convolutions write.

Chosen by hand: no benchmark compares other values.
"""

_MOVING = 64.0
"""Time to move one element in a permutation, as the number of floating-point operations in that time.

Measured when this was written; no benchmark repeats it.
"""


def with_channels_last(module: Any) -> Any:
    """Convert the convolutions of a module to channels last.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The converted module, or the same one if the permutations would cost more.
    """
    convolved, before = _written(module)
    if not convolved:
        return module
    layouts = {f"relax.{name}": [*layouts] for name, layouts in LAYOUTS.items()}
    counted = rewritten(module, _counted_from_the_front)
    converted = settled(_tvm.relax.transform.ConvertLayout(layouts)(counted), _sunk)
    _, after = _written(converted)
    return converted if after - before <= MOST_MOVED * convolved + _saved(converted) / _MOVING else module


def _counted_from_the_front(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace negative axes of squeeze, on which TVM's pass fails."""
    if operator(expression) != "squeeze" or expression.attrs.axis is None:
        return None
    axes, rank = [int(axis) for axis in expression.attrs.axis], len(shape(expression.args[0]))
    if min(axes, default=0) >= 0:
        return None
    return _tvm.relax.op.squeeze(rewriter.new(expression.args[0]), [axis % rank for axis in axes])


def _sunk(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Move permutations behind elementwise operators, so that they meet their inverses. TVM's pass misses some cases.

    Permutations of constants are evaluated. A permutation that moves only dimensions of size 1 becomes a reshape.
    """
    name = operator(expression)
    if name in UNARY | BINARY:
        return _behind(expression, known, rewriter)
    if name != "permute_dims":
        return None
    if is_constant(expression.args[0]):
        return constant(expression.args[0].value.numpy().transpose(axes_of(expression)).copy())
    if not _moves(expression):
        return _tvm.relax.op.reshape(rewriter.new(expression.args[0]), shape(expression))
    first = known.value(expression.args[0])
    if operator(first) != "permute_dims":
        return None
    source, axes = rewriter.new(first.args[0]), axes_of(first)
    joined = [axes[axis] for axis in axes_of(expression)]
    return source if joined == sorted(joined) else _tvm.relax.op.permute_dims(source, joined)


def _behind(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Permute an elementwise operator's result instead of each of its operands."""
    tensors = [a for a in expression.args if hasattr(a.ty, "shape") and not (is_constant(a) and not shape(a))]
    values = [known.value(a) for a in tensors]
    if not values or any(operator(v) != "permute_dims" or shape(v) != shape(expression) for v in values):
        return None
    axes = axes_of(values[0])
    if any(axes_of(value) != axes for value in values):
        return None

    def operand(argument: Any) -> Any:
        value = known.value(argument)
        return rewriter.new(value.args[0] if operator(value) == "permute_dims" else argument)

    call = _tvm.relax.Call(expression.op, [operand(a) for a in expression.args], expression.attrs)
    return _tvm.relax.op.permute_dims(rewriter.builder.emit(call), axes)


def _moves(permutation: Any) -> bool:
    """Return whether a permutation changes the order of elements in memory."""
    axes = [axis for axis in axes_of(permutation) if shape(permutation.args[0])[axis] > 1]
    return axes != sorted(axes)


def _saved(module: Any) -> float:
    """Return the floating-point operations that fast convolutions will save in a module with channels last."""
    plans: list[Plan | None] = []
    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, lambda node: plans.append(plan_of(node)))
    return sum(plan.direct_cost() - plan.cost for plan in plans if plan is not None)


def _written(module: Any) -> tuple[int, int]:
    """Return the number of elements that convolutions write, and that permutations of non-constant tensors move."""
    convolved = moved = 0

    def visit(node: Any) -> None:
        nonlocal convolved, moved
        if operator(node) in LAYOUTS:
            convolved += math.prod(shape(node))
        elif operator(node) == "permute_dims" and not is_constant(node.args[0]):
            moved += math.prod(shape(node)) * _moves(node)

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return convolved, moved
