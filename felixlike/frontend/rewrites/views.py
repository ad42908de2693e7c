"""Trace tensors of a Relax function back through views: operators that only change the place of elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, axes_of, is_constant, operator, shape

Indices = list[Any]
Place = Callable[[Indices], Indices]
"""Indices of a tensor → indices of the tensor that it is a view of."""


@dataclass(frozen=True, slots=True)
class View:
    """Describe where the elements of a tensor are in its source.

    Attributes:
        source: Expression of the tensor that is read.
        place: Maps indices of the tensor to those of the source.
        factor: Factor of every element.
    """

    source: Any
    place: Place
    factor: float = 1.0


def view(expression: Any, known: Bindings) -> View:
    """Trace a tensor back to the value that it is a view of."""
    last = View(expression, list)
    while (one := _step(known.value(last.source))) is not None:
        last = _chained(last, one)
    return last


def operand(expression: Any, known: Bindings, *, scaled: bool, sliced: bool) -> View:
    """Trace an operand back through views, as far as reading its source saves moving elements.

    Reshapes at the end of the trace move nothing, and views of constants are computed once.

    scaled: also through multiplications by numbers.  sliced: also through slices.
    """
    best = last = View(expression, list)
    while True:
        value = known.value(last.source)
        one = (_scaled(value) if scaled else None) or (_sliced(value, known) if sliced else None) or _step(value)
        if one is None or is_constant(one.source):
            return best
        reshaped = operator(value) == "reshape"
        last = _chained(last, one)
        best = best if reshaped else last


def _chained(first: View, second: View) -> View:
    """Return the view of a view."""
    return View(second.source, partial(_both, first.place, second.place), first.factor * second.factor)


def _both(first: Place, second: Place, indices: Indices) -> Indices:
    """Return the indices that two maps lead to, one after the other."""
    return second(first(indices))


def _step(value: Any) -> View | None:
    """Return the view that an operator computes, or None."""
    if operator(value) == "permute_dims":
        order = axes_of(value)
        return View(value.args[0], lambda indices: [indices[order.index(place)] for place in range(len(order))])
    if operator(value) == "broadcast_to":
        return View(value.args[0], lambda indices: broadcast(indices, shape(value.args[0])))
    if operator(value) in ("reshape", "expand_dims", "squeeze"):
        return View(value.args[0], lambda indices: regrouped(shape(value.args[0]), shape(value), indices))
    return None


def _sliced(value: Any, known: Bindings) -> View | None:
    """Return the view that a slice without gaps, or a part of a split, computes, or None."""
    if isinstance(value, _tvm.relax.TupleGetItem):
        split = known.value(value.tuple_value)
        if operator(split) != "split":
            return None
        source, axis = split.args[0], int(split.attrs.axis)
        parts = [int(part.shape[axis]) for part in value.tuple_value.ty.fields]
        offsets = {axis % len(shape(source)): sum(parts[: int(value.index)])}
    elif operator(value) == "strided_slice":
        source = value.args[0]
        axes, begins, _, *steps = ([int(i) for i in entries.fields] for entries in value.args[1:])
        offsets = {axis % len(shape(source)): begin for axis, begin in zip(axes, begins, strict=True)}
        if any(stride != 1 for stride in chain(*steps)) or min(begins) < 0:
            return None
    elif operator(value) == "take" and is_number(value.args[1]) and value.attrs.axis is not None:
        source, axis, place = value.args[0], int(value.attrs.axis), int(number(value.args[1]))
        if shape(value.args[1]) or not 0 <= place < shape(source)[axis]:
            return None
        return View(source, lambda indices: [*indices[:axis], place, *indices[axis:]]) if axis >= 0 else None
    else:
        return None
    return View(source, lambda indices: [i + offsets.get(place, 0) for place, i in enumerate(indices)])


def _scaled(value: Any) -> View | None:
    """Return the view with a factor that a multiplication by a number computes, or None."""
    if operator(value) != "multiply":
        return None
    tensors, numbers = ([a for a in value.args if is_number(a) == wanted] for wanted in (False, True))
    if len(numbers) != 1 or shape(tensors[0]) != shape(value) or not number(numbers[0]):
        return None  # a product with 0 keeps NaN and infinities
    return View(tensors[0], list, float(number(numbers[0])))


def is_number(expression: Any) -> bool:
    """Return whether an expression is a constant of one element."""
    return is_constant(expression) and math.prod(shape(expression)) == 1


def number(expression: Any) -> Any:
    """Return the value of a constant of one element."""
    return expression.value.numpy().item()


def broadcast(indices: Sequence[Any], extents: Sequence[int]) -> Indices:
    """Return the indices of a tensor that is broadcast, given those of the result."""
    last = indices[len(indices) - len(extents) :]
    return [0 if n == 1 else i for n, i in zip(extents, last, strict=True)]


def regrouped(before: Sequence[int], after: Sequence[int], indices: Indices) -> Indices:
    """Return the indices before a reshape. Dimensions that the reshape leaves alone keep their index."""
    result: Indices = []
    place = 0
    while len(result) < len(before):
        # The fewest dimensions, before and after, that have equally many elements.
        sizes, index, extent = [before[len(result)]], 0, 1
        while extent != math.prod(sizes):
            if extent < math.prod(sizes):
                index = index * after[place] + indices[place] if extent > 1 else indices[place]
                extent, place = extent * after[place], place + 1
            else:
                sizes.append(before[len(result) + len(sizes)])
        for number, size in enumerate(sizes):
            stride = math.prod(sizes[number + 1 :])
            part = index // stride if stride > 1 else index
            result.append(0 if size == 1 else part % size if math.prod(sizes[:number]) > 1 else part)
    return result


def simplified(indices: Sequence[Any], variables: Sequence[Any], extents: Sequence[int]) -> Indices:
    """Return indices simplified for variables of known extents."""
    analyzer = _tvm.sym.Analyzer()
    for variable, extent in zip(variables, extents, strict=True):
        analyzer.bind(variable, _tvm.ir.Range(0, extent))
    return [i if isinstance(i, int) else analyzer.simplify(i) for i in indices]
