"""Convert chains of convolutions to channels last where that saves more than it costs.

    conv(relu(conv(x)))   →   permute(conv'(relu(conv'(permute(x)))))

With channels last, vectors of channels are contiguous. Kernels need not transpose their output tile, and depthwise
convolutions and poolings fill vectors for any stride and width. A single convolution would pay with two passes over
memory. The layouts of a function are therefore changed only if the remaining permutations move little compared with
what its convolutions write, or take little time compared with what fast convolutions (`winograd.py`) or products of
pairs (`even_channels.py`) save, which only channels-last convolutions have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.even_channels import saved_by_pairs
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
    with_attributes,
)
from felixlike.frontend.rewrites.sink_reshapes import BINARY, UNARY
from felixlike.frontend.rewrites.split_deconvolution import CHANNELS_FIRST, TRANSPOSED_LAYOUTS
from felixlike.frontend.rewrites.winograd import LAYOUTS, plan_of
from felixlike.hardware import FLOAT32, Precision
from felixlike.hardware.vectors import SHORTEST

_LAYOUTS = LAYOUTS | TRANSPOSED_LAYOUTS
"""Layouts of data and weights of channels-last convolutions, by operator."""

MOST_MOVED = 0.25
"""Upper limit of the additional elements that permutations move, per element that convolutions write.

Chosen by hand: no benchmark compares other values.
"""

_SCATTERED = 3
"""Elements of a plain convolution that weigh as much as one that a transposed convolution writes. With channels first,
its phases alternate in memory. Chosen by hand, after networks of both kinds: with channels last a U-Net takes 0.84 and
DCGAN's generator 0.93 of the time.
"""

_MOVING = 64.0
"""Time to move one element in a permutation, as the number of floating-point operations in that time.

Measured when this was written; no benchmark repeats it.
"""


def with_channels_last(module: Any, precision: Precision = FLOAT32, halves: Precision = FLOAT32) -> Any:
    """Convert the convolutions of a module to channels last.

    Args:
        module: Relax IRModule with operators.
        precision: Precision of products.
        halves: Precision in which products of bfloat16 tensors are computed, without rounding them.

    Returns:
        The converted module, or the same one if the permutations would cost more.
    """
    convolved, before = _written(module)
    if not convolved:
        return module
    layouts = {f"relax.{name}": [*layouts] for name, layouts in _LAYOUTS.items()}
    counted = rewritten(module, _counted_from_the_front)
    converted = settled(_tvm.relax.transform.ConvertLayout(layouts)(counted), _sunk)
    _, after = _written(converted)
    saved = _saved(converted, precision, halves)
    return converted if after - before <= MOST_MOVED * convolved + saved / _MOVING else module


def _counted_from_the_front(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace negative axes of permute_dims and squeeze, on which TVM's pass fails."""
    if operator(expression) == "permute_dims" and any(int(axis) < 0 for axis in expression.attrs.axes or ()):
        return _tvm.relax.op.permute_dims(rewriter.new(expression.args[0]), axes_of(expression))
    if operator(expression) != "squeeze" or expression.attrs.axis is None:
        return None
    axes, rank = [int(axis) for axis in expression.attrs.axis], len(shape(expression.args[0]))
    if min(axes, default=0) >= 0:
        return None
    return _tvm.relax.op.squeeze(rewriter.new(expression.args[0]), [axis % rank for axis in axes])


def _sunk(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Move permutations behind elementwise operators, so that they meet their inverses. TVM's pass misses some cases.

    Permutations of constants are evaluated. A permutation that moves only dimensions of size 1 becomes a reshape. So do
    two permutations with a reshape between them that leave all elements in order, as where tokens become an image.
    """
    name = operator(expression)
    if name in UNARY and operator(known.value(expression.args[0])) == "reshape":
        return _before_reshape(expression, known, rewriter)
    if name in UNARY | BINARY:
        return _behind(expression, known, rewriter)
    if name in TRANSPOSED_LAYOUTS:
        return _with_channels_first(expression, rewriter)
    if name != "permute_dims":
        return None
    if is_constant(expression.args[0]):
        return constant(expression.args[0].value.numpy().transpose(axes_of(expression)).copy())
    if not _moves(expression):
        return _tvm.relax.op.reshape(rewriter.new(expression.args[0]), shape(expression))
    first = known.value(expression.args[0])
    if operator(first) == "reshape":
        inner = known.value(first.args[0])
        if operator(inner) == "permute_dims" and _in_order(inner, first, expression):
            return _tvm.relax.op.reshape(rewriter.new(inner.args[0]), shape(expression))
    if operator(first) != "permute_dims":
        return None
    source, axes = rewriter.new(first.args[0]), axes_of(first)
    joined = [axes[axis] for axis in axes_of(expression)]
    return source if joined == sorted(joined) else _tvm.relax.op.permute_dims(source, joined)


def _with_channels_first(call: Any, rewriter: Rewriter) -> Any:
    """Return a transposed convolution between permutations if it cannot have channels last, else None.

    The images that a generator writes have 3 channels, which do not fill vectors. TVM's own operator, which computes
    those with dilated weights, has its channels first.
    """
    first, last = CHANNELS_FIRST[operator(call)], TRANSPOSED_LAYOUTS[operator(call)]
    dilated = any(int(d) > 1 for d in call.attrs.dilation)
    if call.attrs.data_layout != last[0] or (shape(call)[-1] % SHORTEST == 0 and not dilated):
        return None
    rank = len(shape(call))
    data = rewriter.builder.emit(
        _tvm.relax.op.permute_dims(rewriter.new(call.args[0]), [0, rank - 1, *range(1, rank - 1)])
    )
    attributes = {"data_layout": first[0], "kernel_layout": first[1], "out_layout": first[0]}
    convolved = rewriter.builder.emit(
        with_attributes(call, [rewriter.builder.emit(data), rewriter.new(call.args[1])], **attributes)
    )
    return _tvm.relax.op.permute_dims(convolved, [0, *range(2, rank), 1])


def _before_reshape(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Reshape an elementwise operator's result instead of its operand if that is a permutation."""
    reshaped = known.value(expression.args[0])
    if operator(known.value(reshaped.args[0])) != "permute_dims":
        return None
    arguments = [rewriter.new(argument) for argument in (reshaped.args[0], *expression.args[1:])]
    call = _tvm.relax.Call(expression.op, arguments, expression.attrs)
    return _tvm.relax.op.reshape(rewriter.builder.emit(call), shape(expression))


def _behind(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Permute an elementwise operator's result instead of each of its operands. Constants are permuted now."""
    arguments = [(a, known.value(a)) for a in expression.args]
    moved = [v for a, v in arguments if hasattr(a.ty, "shape") and not is_constant(v)]
    if not moved or any(operator(v) != "permute_dims" or shape(v) != shape(expression) for v in moved):
        return None
    axes = axes_of(moved[0])
    ranks = {len(shape(v)) for _, v in arguments if is_constant(v)} - {0}
    if any(axes_of(value) != axes for value in moved) or ranks - {len(axes)}:
        return None
    back = sorted(range(len(axes)), key=axes.__getitem__)

    def operand(argument: Any, value: Any) -> Any:
        if is_constant(value) and shape(value):
            return constant(value.value.numpy().transpose(back).copy())
        return rewriter.new(value.args[0] if operator(value) == "permute_dims" else argument)

    call = _tvm.relax.Call(expression.op, [operand(a, v) for a, v in arguments], expression.attrs)
    return _tvm.relax.op.permute_dims(rewriter.builder.emit(call), axes)


def _in_order(first: Any, reshaped: Any, last: Any) -> bool:
    """Return whether a permutation of a reshape of a permutation leaves all elements in order.

    Both shapes of the reshape are written as products of the same factors. Each dimension of one or the other consists
    of some of them, and the permutations move these.
    """
    before, after = shape(first), shape(reshaped)
    ends = sorted({*accumulate(before, mul), *accumulate(after, mul)})
    if 0 in ends or any(high % low for low, high in pairwise([1, *ends])):
        return False
    moved = [list[int]()] * len(before)
    for axis, factors in zip(axes_of(first), _factors(before, ends), strict=True):
        moved[axis] = factors
    split = _factors(after, ends)
    return [n for factors in moved for n in factors] == [n for axis in axes_of(last) for n in split[axis]]


def _factors(sizes: Sequence[int], ends: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the factors that each dimension consists of. `ends` are the products up to each factor."""
    products = [1, *accumulate(sizes, mul)]
    return [[n for n, end in enumerate(ends) if low < end <= high] for low, high in pairwise(products)]


def _moves(permutation: Any) -> bool:
    """Return whether a permutation changes the order of elements in memory."""
    axes = [axis for axis in axes_of(permutation) if shape(permutation.args[0])[axis] > 1]
    return axes != sorted(axes)


def _saved(module: Any, precision: Precision, halves: Precision) -> float:
    """Return the floating-point operations that fast convolutions and pairs save in a module with channels last."""
    saved = 0.0

    def visit(node: Any) -> None:
        nonlocal saved
        plan = plan_of(node)
        faster = 0.0 if plan is None else plan.direct_cost() - plan.cost
        saved += max(faster, saved_by_pairs(node, known, precision, halves))

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            known = Bindings(function)
            _tvm.relax.analysis.post_order_visit(function, visit)
    return saved


def _written(module: Any) -> tuple[int, int]:
    """Return the number of elements that convolutions write, and that permutations of non-constant tensors move."""
    convolved = moved = 0

    def visit(node: Any) -> None:
        nonlocal convolved, moved
        if operator(node) in _LAYOUTS:
            convolved += math.prod(shape(node)) * (_SCATTERED if operator(node) in TRANSPOSED_LAYOUTS else 1)
        elif operator(node) == "permute_dims" and not is_constant(node.args[0]):
            moved += math.prod(shape(node)) * _moves(node)

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return convolved, moved
