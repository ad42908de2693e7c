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
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

from felixlike import _tvm
from felixlike.frontend.interpolation import Interpolation, interpolated
from felixlike.frontend.rewrites.even_channels import saved_by_pairs
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    axes_of,
    constant,
    is_constant,
    kernel_of,
    operator,
    reached,
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
    """Move permutations behind operators that do not depend on the layout, so that they meet their inverses.

    TVM's pass misses some cases.
    """
    name = operator(expression)
    if name in UNARY and operator(known.value(expression.args[0])) == "reshape":
        return _before_reshape(expression, known, rewriter)
    if name in UNARY | BINARY:
        return _behind(expression, known, rewriter)
    if name in TRANSPOSED_LAYOUTS:
        return _with_channels_first(expression, rewriter)
    rule = {"call_tir": _interpolation_behind, "concat": _joined_behind, "permute_dims": _simplified}.get(name)
    return None if rule is None else rule(expression, known, rewriter)


def _simplified(permutation: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return a simpler form of a permutation, or None.

    That of a constant is evaluated. One that moves only dimensions of size 1 becomes a reshape, and so do two with a
    reshape between them that leave all elements in order, as where tokens become an image.
    """
    if is_constant(permutation.args[0]):
        return constant(permutation.args[0].value.numpy().transpose(axes_of(permutation)).copy())
    if not _moves(permutation):
        return _tvm.relax.op.reshape(rewriter.new(permutation.args[0]), shape(permutation))
    inner = _permutation(permutation.args[0], known)
    if inner is None:
        return None
    joined = [inner.axes[axis] for axis in axes_of(permutation)]
    if joined == sorted(joined):
        source = rewriter.new(inner.source)
        return source if inner.sizes is None else _tvm.relax.op.reshape(source, shape(permutation))
    return _tvm.relax.op.permute_dims(rewriter.new(inner.source), joined) if inner.sizes is None else None


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


def _interpolation_behind(call: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Permute the result of an interpolation, which may be larger, instead of its operand if it is permuted again."""
    how = Interpolation.of(kernel_of(rewriter.module, call))
    if how is None or not _is_permuted_again(call, known, rewriter.module):
        return None
    (operand,) = call.args[1].fields
    inner = _permutation(operand, known)
    if inner is None:
        return None
    how = replace(how, axis=inner.axes[how.axis])
    return _tvm.relax.op.permute_dims(interpolated(rewriter.builder, inner.permuted(rewriter), how), inner.axes)


def _is_permuted_again(call: Any, known: Bindings, module: Any) -> bool:
    """Return whether a permutation reads an interpolation, directly or behind operators that keep the layout."""
    behind = UNARY | BINARY | {"concat"}

    def readers(value: Any) -> list[Any]:
        keeps = operator(value) in behind or Interpolation.of(kernel_of(module, value)) is not None
        return known.readers(known.variable(value)) if keeps else []

    return any(operator(value) == "permute_dims" for value in reached(call, readers))


def _joined_behind(call: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Permute joined tensors instead of each of them."""
    parts = known.value(call.args[0])
    if not isinstance(parts, _tvm.relax.Tuple) or call.attrs.axis is None:
        return None
    inner = [one for one in (_permutation(part, known) for part in parts.fields) if one is not None]
    if len(inner) < len(parts.fields) or any(one.axes != inner[0].axes for one in inner):
        return None
    axes = inner[0].axes
    joined = _tvm.relax.op.concat([one.permuted(rewriter) for one in inner], axes[int(call.attrs.axis) % len(axes)])
    return _tvm.relax.op.permute_dims(rewriter.builder.emit(joined), axes)


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


@dataclass(frozen=True, slots=True)
class _Permutation:
    """A permutation, or a reshape of one as a permutation of a reshape.

    Attributes:
        source: What is permuted or reshaped.
        sizes: The sizes that it is reshaped to before, None if it is only permuted.
        axes: The axes.
    """

    source: Any
    sizes: list[int] | None
    axes: list[int]

    def permuted(self, rewriter: Rewriter) -> Any:
        """Return what is permuted in the new function."""
        source = rewriter.new(self.source)
        return source if self.sizes is None else rewriter.builder.emit(_tvm.relax.op.reshape(source, self.sizes))


def _permutation(operand: Any, known: Bindings) -> _Permutation | None:
    """Return the permutation that an operand is, or a reshape of one; None for others.

    Both shapes of a reshape are written as products of the same factors. Each dimension of one or the other consists
    of some of them, which must be neighbours before the permutation, too.
    """
    reshaped = known.value(operand)
    if operator(reshaped) == "permute_dims":
        return _Permutation(reshaped.args[0], None, axes_of(reshaped))
    if operator(reshaped) != "reshape":
        return None
    first = known.value(reshaped.args[0])
    if operator(first) != "permute_dims":
        return None
    before, after = shape(first), shape(reshaped)
    sizes: Sequence[Any] = (*before, *after)
    if not all(isinstance(size, int) and size for size in sizes):
        return None
    ends = sorted({*accumulate(before, mul), *accumulate(after, mul)})
    if any(high % low for low, high in pairwise([1, *ends])):
        return None
    moved: list[list[int]] = [[]] * len(before)
    for axis, factors in zip(axes_of(first), _factors(before, ends), strict=True):
        moved[axis] = factors
    order = [n for factors in moved for n in factors]
    split = _factors(after, ends)
    dimensions = sorted(range(len(after)), key=lambda place: order.index(split[place][0]) if split[place] else -1)
    if [n for place in dimensions for n in split[place]] != order:
        return None
    axes = [dimensions.index(place) for place in range(len(after))]
    if axes == sorted(axes):
        return None
    return _Permutation(first.args[0], [after[place] for place in dimensions], axes)


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
