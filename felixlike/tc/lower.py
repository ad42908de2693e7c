"""Lower nodes to a TIR function with one block per node.

Input: the nodes of one function and the tensors they read. Output: a PrimFunc over the buffers of its inputs and
outputs. Accesses that tests keep within their tensors are executed only where the tests hold. Subscripts of accesses
that are checked at runtime are clamped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.tc.bounds import Kept
from felixlike.tc.const_eval import Unknown, on_grid
from felixlike.tc.elementary import elementary
from felixlike.tc.functions import WRITTEN_OUT
from felixlike.tc.linear import Interval, interval, may_wrap
from felixlike.tc.nodes import Node, extent
from felixlike.tc.program import Binary, Call, Choose, Convert, Index, Literal, Read, Size, Unary, Value, children, walk
from felixlike.tc.scalars import bits, is_float, is_integral, is_unsigned, limits

_Expr = Any

_FORMULAS = 1
"""Nested functions that become vector arithmetic; one more level triples TVM's compile time."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What lowering needs to know besides the nodes.

    Attributes:
        sizes: Sizes by name.
        bounds: Least and greatest subscript of each dimension of each tensor and node.
        kept: How each read is kept within its tensor, by the id of the read.
    """

    sizes: Mapping[str, int]
    bounds: Mapping[str, tuple[Interval, ...]]
    kept: Mapping[int, Kept]


def function(
    nodes: Sequence[Node], inputs: Sequence[tuple[str, tuple[int, ...], str]], outputs: Sequence[str], facts: Facts
) -> Any:
    """Return a PrimFunc that computes the nodes.

    inputs: (name, shape, dtype) of the tensors that nodes read from outside. outputs: names of the nodes it returns.
    """
    te = _tvm.te
    placeholders = [te.placeholder(shape, dtype, name=identifier(name)) for name, shape, dtype in inputs]
    tensors = {name: tensor for (name, _, _), tensor in zip(inputs, placeholders, strict=True)}
    for node in nodes:
        tensors[node.name] = _computed(node, tensors, facts)
    return te.create_prim_func([*placeholders, *(tensors[name] for name in outputs)])


def identifier(name: str) -> str:
    """Return a name that is valid in TVM's scripts."""
    return name.replace(".", "_")


def _computed(node: Node, tensors: Mapping[str, Any], facts: Facts) -> Any:
    """Return the TE tensor of a node."""
    te, name = _tvm.te, identifier(node.name)

    def at(*axes: _Expr) -> Callable[[Value], _Expr]:
        names = (*node.indices, *node.reduced)
        places = {n: axis + node.intervals[n][0] for n, axis in zip(names, axes, strict=True)}
        return _Lowering(node, places, tensors, facts).expression

    if not node.reduced:
        return te.compute(node.shape, lambda *axes: at(*axes)(node.value), name=name)
    reduced = [te.reduce_axis((0, extent(node.intervals[index])), name=index) for index in node.reduced]
    reducer = _reducer(node.operator)
    of_bools = node.dtype == "bool"

    def element(*axes: _Expr) -> _Expr:
        value = at(*axes, *(axis.var for axis in reduced))(node.value)
        return reducer(value.astype("uint8") if of_bools else value, axis=reduced)

    tensor = te.compute(node.shape, element, name=f"{name}_bits" if of_bools else name)
    if of_bools:
        return te.compute(node.shape, lambda *axes: tensor(*axes) != _tvm.tirx.const(0, "uint8"), name=name)
    return tensor


def _reducer(operator: str) -> Any:
    te = _tvm.te
    if operator == "*":
        return te.comm_reducer(lambda a, b: a * b, lambda dtype: _tvm.tirx.const(1, dtype), name="product")
    return {"+": te.sum, "min": te.min, "max": te.max}[operator]


@dataclass(frozen=True, slots=True)
class _Lowering:
    """The expressions of one node. places: the TVM expression of each index."""

    node: Node
    places: Mapping[str, _Expr]
    tensors: Mapping[str, Any]
    facts: Facts

    def expression(self, value: Value) -> _Expr:
        """Lower a value to a TVM expression."""
        constant = self._constant(value)
        return self._of_form(value) if constant is None else _tvm.tirx.const(constant, value.dtype)

    def _of_form(self, value: Value) -> _Expr:
        match value:
            case Index():
                low, high = self.node.intervals[value.name]
                return _tvm.tirx.const(low, "int32") if low == high else self.places[value.name]
            case Read():
                return self._read(value)
            case Convert():
                return self._conversion(value)
            case Unary():
                return self._unary(value)
            case Binary():
                return self._binary(value)
            case Choose():
                return self._choice(value)
            case Call():
                return self._call(value)

    def _constant(self, value: Value) -> int | float | None:
        """Return the number that a value is; None if it is not constant, or TVM computes it correctly.

        TVM folds nested formulas incorrectly, and fails where constants of integers wrap.
        """
        if isinstance(value, Literal | Size):
            return value.value if isinstance(value, Literal) else self.facts.sizes[value.name]
        is_arithmetic = isinstance(value, Unary | Binary | Convert) and is_integral(value.dtype)
        if not is_arithmetic and not isinstance(value, Call):
            return None
        single = {name: low for name, (low, high) in self.node.intervals.items() if low == high}
        if not any(isinstance(p, Read) or (isinstance(p, Index) and p.name not in single) for p in walk(value)):
            with contextlib.suppress(Unknown, ZeroDivisionError):
                number = on_grid(value, single, self.facts.sizes)
                if is_integral(value.dtype):
                    return int(number.astype(value.dtype))
                if math.isfinite(number):
                    return float(number)
        return None

    def _conversion(self, value: Convert) -> _Expr:
        """Lower a conversion. TVM fails where it folds a constant that wraps in it, and takes others not to wrap."""
        inner, source, dtype = self._operand(value.value), value.value.dtype, value.dtype
        if not is_integral(source) or not is_integral(dtype):
            return _converted(inner, source, dtype)
        low, high = limits(dtype)
        least, greatest = interval(value.value, self.node.intervals, self.facts.sizes)
        if dtype != "uint64" and (least < low or greatest > high):
            return _masked(inner, dtype, "int32" if bits(dtype) < 32 or dtype == "int32" else "int64").astype(dtype)
        return self._widened(value.value, dtype) if dtype in ("int32", "int64") else inner.astype(dtype)

    def _call(self, call: Call) -> _Expr:
        """Lower a function call."""
        parts = list(walk(call))
        by_library = max(map(_height, call.arguments)) > _FORMULAS or not any(isinstance(p, Read) for p in parts)
        arguments = [self.expression(argument) for argument in call.arguments]
        return elementary(call.function, arguments, by_library=by_library)

    def _read(self, read: Read) -> _Expr:
        """Lower a read; clamp subscripts that are checked at runtime."""
        status = self.facts.kept.get(id(read), Kept.ALWAYS)
        subscripts = []
        for subscript, (low, high) in zip(read.subscripts, self.facts.bounds[read.tensor], strict=True):
            is_narrow = bits(subscript.dtype) < 32 or subscript.dtype == "int32"
            place = self._widened(subscript, "int32" if is_narrow else "int64")
            if status is Kept.BY_CHECK and not self._within(subscript, low, high):
                dtype = str(place.ty.dtype)
                place = _tvm.tirx.max(_tvm.tirx.min(place, _tvm.tirx.const(high, dtype)), _tvm.tirx.const(low, dtype))
            if str(place.ty.dtype) != "int32":
                place = place.astype("int32")
            subscripts.append(place - low)
        return self._tensor(read)(*subscripts)

    def _operand(self, value: Value) -> _Expr:
        """Lower an operand for which it matters whether a sum in int32 wraps."""
        return self._reduced(value) if self._may_wrap(value) else self.expression(value)

    def _may_wrap(self, value: Value) -> bool:
        if not isinstance(value, Unary | Binary) or not _is_sum(value):
            return False
        return may_wrap(value, self.node.intervals, self.facts.sizes)

    def _reduced(self, value: Value) -> _Expr:
        """Lower a sum in int32 or uint32 that may wrap.

        TVM and LLVM take such sums not to overflow. So they are computed in int64, and reduced.
        """
        terms, constant = self._terms(value)
        total = _tvm.tirx.const(_signed(constant), "int64")
        for factor, term in terms:
            total = total + (term * _tvm.tirx.const(_signed(factor), "int64") & _tvm.tirx.const(2**32 - 1, "int64"))
        return _masked(total, "uint32", value.dtype)

    def _terms(self, value: Value) -> tuple[list[tuple[int, _Expr]], int]:
        """Return the terms of a sum as factors and expressions in int64 with 32 bits, and its constant."""
        constant = self._constant(value)
        if constant is not None:
            return [], int(constant)
        match value:
            case Unary() if _is_sum(value):
                return self._scaled(value.value, -1)
            case Binary(operator="+" | "-") if _is_sum(value):
                left, first = self._terms(value.left)
                right, second = self._scaled(value.right, 1 if value.operator == "+" else -1)
                return [*left, *right], first + second
            case Binary() if _is_sum(value):
                for part, other in ((value.left, value.right), (value.right, value.left)):
                    factor = self._constant(part)
                    if factor is not None:
                        return self._scaled(other, int(factor))
                product = self._residue(value.left) * self._residue(value.right)
                return [(1, _masked(product, "uint32", "int32").astype("int64"))], 0
        return [(1, self._residue(value))], 0

    def _residue(self, value: Value) -> _Expr:
        """Lower a value in int32 or uint32 as an int64 of 32 bits with a sign."""
        inner = self._operand(value)
        return (inner if value.dtype == "int32" else _masked(inner, "uint32", "int32")).astype("int64")

    def _scaled(self, value: Value, factor: int) -> tuple[list[tuple[int, _Expr]], int]:
        """Return the terms of a sum, times a number."""
        terms, constant = self._terms(value)
        return [(factor * each, term) for each, term in terms], factor * constant

    def _widened(self, value: Value, dtype: str) -> _Expr:
        """Lower a value in the type int32 or int64."""
        inner, source = self._operand(value), value.dtype
        is_element = isinstance(value, Read) and isinstance(self._tensor(value).op, _tvm.te.PlaceholderOp)
        if not is_integral(source) or source in ("int32", "int64", "uint64") or is_element:
            return _converted(inner, source, dtype)
        return _masked(inner, source, dtype)

    def _tensor(self, read: Read) -> Any:
        """Return the TE tensor of a read."""
        return self.tensors[self.node.versions[read.tensor]]

    def _within(self, subscript: Value, low: int, high: int) -> bool:
        """Return whether a subscript is always within bounds."""
        least, greatest = interval(subscript, self.node.intervals, self.facts.sizes)
        return low <= least and greatest <= high

    def _unary(self, value: Unary) -> _Expr:
        inner = self.expression(value.value)
        if value.operator == "!":
            return _tvm.tirx.Not(inner)
        if is_float(value.dtype):
            return -inner
        if (value.dtype == "uint32" or self._has_constant(value)) and self._may_wrap(value):
            return self._reduced(value)
        if value.dtype == "uint64":
            return (_tvm.tirx.const(0, "int64") - inner.astype("int64")).astype("uint64")
        return _tvm.tirx.const(0, value.dtype) - inner

    def _binary(self, value: Binary) -> _Expr:
        tirx = _tvm.tirx
        if value.operator in _SUMS:
            return self._sum(value)
        left, right = self._operand(value.left), self._operand(value.right)
        boolean = value.left.dtype == "bool"
        if value.operator in ("&&", "||"):
            return self._logical(value, left, right)
        if boolean and value.operator in ("min", "max"):
            return tirx.And(left, right) if value.operator == "min" else tirx.Or(left, right)
        if boolean:
            left, right = left.astype("int32"), right.astype("int32")
        if value.operator in ("/", "%"):
            return self._divided(value, left, right)
        return _PLAIN[value.operator](left, right)

    def _sum(self, value: Binary) -> _Expr:
        """Lower + - or *.

        TVM merges the constants of sums in int32, and fails where the result exceeds the type. Sums without constants
        are computed by instructions that wrap, unless an operator needs their value.
        """
        if (value.dtype == "uint32" or self._has_constant(value)) and self._may_wrap(value):
            return self._reduced(value)
        left, right = self.expression(value.left), self.expression(value.right)
        if value.dtype == "uint64" and value.operator == "-":  # unsigned, it would be taken not to be negative
            return (left.astype("int64") - right.astype("int64")).astype("uint64")
        return _PLAIN[value.operator](left, right)

    def _has_constant(self, value: Value) -> bool:
        """Return whether a sum contains a constant."""
        if not _is_sum(value):
            return self._constant(value) is not None
        return any(map(self._has_constant, children(value)))

    def _logical(self, value: Binary, left: _Expr, right: _Expr) -> _Expr:
        """Lower && or ||; the right operand is evaluated lazily if tests protect its reads."""
        tirx, is_and = _tvm.tirx, value.operator == "&&"
        if self._only_by_tests(value.right):
            fixed = tirx.const(not is_and, "bool")
            return tirx.if_then_else(left, right, fixed) if is_and else tirx.if_then_else(left, fixed, right)
        return tirx.And(left, right) if is_and else tirx.Or(left, right)

    def _choice(self, value: Choose) -> _Expr:
        """Lower a conditional, with lazy branches if tests protect their reads."""
        parts = [self.expression(part) for part in (value.condition, value.left, value.right)]
        if self._only_by_tests(value.left, value.right):
            return _tvm.tirx.if_then_else(*parts)
        return _tvm.tirx.Select(*parts)

    def _only_by_tests(self, *values: Value) -> bool:
        """Return whether the values contain a read that must not be executed where a test around it fails."""
        return any(
            isinstance(part, Read) and self.facts.kept.get(id(part), Kept.ALWAYS) is Kept.BY_TESTS
            for part in walk(*values)
        )

    def _divided(self, value: Binary, left: _Expr, right: _Expr) -> _Expr:
        """Lower a division, rounded towards negative infinity; x / 0 is 0 and division by -1 does not trap."""
        tirx, dtype = _tvm.tirx, value.dtype
        if is_float(dtype):
            return left / right if value.operator == "/" else _float_remainder(left, right)
        divide = tirx.floordiv if value.operator == "/" else tirx.floormod
        least, greatest = interval(value.right, self.node.intervals, self.facts.sizes)
        if least > 0 or greatest < -1:
            return divide(left, right)
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        needs_care = right == zero
        if not is_unsigned(dtype):
            needs_care = tirx.Or(needs_care, right == tirx.const(-1, dtype))
        quotient = divide(left, tirx.Select(needs_care, one, right))
        # Not Select, which evaluates both: knowing its condition, TVM removes the one within the quotient.
        if value.operator == "%":
            return tirx.if_then_else(needs_care, zero, quotient)
        negated = zero if is_unsigned(dtype) else zero - left
        return tirx.if_then_else(needs_care, tirx.Select(right == zero, zero, negated), quotient)


def _is_sum(value: Value) -> bool:
    """Return whether a value is a sum, difference, product or negation in int32 or uint32."""
    return value.dtype in ("int32", "uint32") and isinstance(value, Unary | Binary) and value.operator in _SUMS


def _signed(number: int) -> int:
    """Return the number of 32 bits with a sign that a number wraps to."""
    return (number + 2**31) % 2**32 - 2**31


def _masked(inner: _Expr, source: str, dtype: str) -> _Expr:
    """Convert an integer of a type that wraps to int32, uint32 or int64; its further bits are ignored.

    TVM analyses expressions of these types as if nothing within them wrapped: without a mask, it takes int32(-u) to be
    negative for a uint8.
    """
    if bits(source) == 64:
        return (inner.astype("int64") ^ 1 ^ 1).astype(dtype)
    wide = "int32" if bits(source) < 32 else "int64"
    mask, half = (_tvm.tirx.const(number, wide) for number in (2 ** bits(source) - 1, 2 ** (bits(source) - 1)))
    flipped = inner.astype(wide) ^ half  # TVM knows no bounds of ^, so that the mask alone determines them
    if is_unsigned(source) and (source, dtype) != ("uint32", "int32"):
        return ((flipped ^ half) & mask).astype(dtype)
    return ((flipped & mask) - half).astype(dtype)


def _height(value: Value) -> int:
    """Return the greatest nesting depth of functions, at most 2; callers need no more."""
    calls = [part for part in walk(value) if isinstance(part, Call)]
    if any(call.function in WRITTEN_OUT for call in calls):
        return 2
    within = any(isinstance(part, Call) for call in calls for child in children(call) for part in walk(child))
    return 2 if within else bool(calls)


def _float_remainder(left: _Expr, right: _Expr) -> _Expr:
    """Return the remainder with the sign of the divisor. The dividend occurs only twice, since remainders nest."""
    tirx, dtype = _tvm.tirx, str(left.ty.dtype)
    rest, zero = elementary("fmod", [left, right]), tirx.const(0.0, dtype)
    sign = tirx.Select(right < zero, tirx.const(-1.0, dtype), tirx.const(1.0, dtype))
    return rest + tirx.Select(rest * sign < zero, right, zero)


def _converted(inner: _Expr, source: str, dtype: str) -> _Expr:
    """Convert as C does: floats are truncated, integers wrap."""
    if source == dtype:
        return inner
    if dtype == "bool":
        return inner != _tvm.tirx.const(0, source)
    if is_float(source) and not is_float(dtype) and dtype not in ("int32", "int64"):
        inner = inner.astype("int32" if bits(dtype) < 32 else "int64")
    return inner.astype(dtype)


_SUMS = ("+", "-", "*")
"""Operators whose result, of operands that wrap, is that of exact operands after it wraps."""

_PLAIN: dict[str, Callable[[_Expr, _Expr], _Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "min": lambda a, b: _tvm.tirx.min(a, b),
    "max": lambda a, b: _tvm.tirx.max(a, b),
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: _tvm.tirx.EQ(a, b),
    "!=": lambda a, b: _tvm.tirx.NE(a, b),
}
"""Operators that map directly to TVM expressions."""
