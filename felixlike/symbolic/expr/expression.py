"""Define hash-consed expressions over schedule variables, for extents, gates and formulas.

Input: numbers and variables. Output: shared, canonical nodes. Equal expressions are the same object, so a set of
formulas is one graph. Sums and products are flat with like terms collected, as in computer algebra systems. Products of
sums stay factored unless `polynomial.expand` is called, because a factored form is a monomial in log space.

Operators: + − × ÷ pow and floor division. min, max, select, and `at_least` (a gate: 1 where x ≥ k, else 0) are in
`comparison.py`. Every node has an interval that contains its value. Constructors use it to simplify min, max, gates and
selects immediately. `traversal.py` finds and replaces subexpressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from weakref import WeakValueDictionary

from felixlike.symbolic.expr.node import (
    Group,
    Node,
    Number,
    Op,
    Payload,
    group_of,
    is_gate,
    linear_parts,
    product_parts,
)
from felixlike.symbolic.expr.printing import to_text


class Expr(Node):
    """Represent an immutable node.

    Compare nodes with `is`. Build them with operators, and with the functions here and in `comparison.py`.
    """

    __slots__ = ()

    args: tuple[Expr, ...]

    def __add__(self, other: Expr | Number) -> Expr:
        return add((self, other))

    def __radd__(self, other: Number) -> Expr:
        return add((other, self))

    def __sub__(self, other: Expr | Number) -> Expr:
        return add((self, mul((-1, other))))

    def __rsub__(self, other: Number) -> Expr:
        return add((other, mul((-1, self))))

    def __mul__(self, other: Expr | Number) -> Expr:
        return mul((self, other))

    def __rmul__(self, other: Number) -> Expr:
        return mul((other, self))

    def __truediv__(self, other: Expr | Number) -> Expr:
        return mul((self, power(as_expr(other), -1)))

    def __rtruediv__(self, other: Number) -> Expr:
        return mul((other, power(self, -1)))

    def __neg__(self) -> Expr:
        return mul((-1, self))

    def __repr__(self) -> str:
        return to_text(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (restore, (self.op, self.args, self.payload))


REMEMBERED = 100_000
"""Cache size of each of the slower operations, in results; building a sketch's formulas repeats many of them."""

_nodes: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()
"""The live nodes by their parts."""
_created = 0


def make_node(op: Op, args: tuple[Expr, ...], payload: Payload, low: float, high: float) -> Expr:
    """Return the unique node with these parts."""
    global _created
    # 1 and 1.0 are equal as keys, but an integer must not become a float because the float was created first.
    key = (op, tuple(map(id, args)), payload, tuple(map(type, payload)))
    existing = _nodes.get(key)
    if existing is not None:
        return existing
    node = object.__new__(Expr)
    node.op, node.args, node.payload, node.low, node.high = op, args, payload, low, high
    _created += 1
    node.order = _created
    _nodes[key] = node
    return node


@lru_cache(maxsize=REMEMBERED, typed=True)
def const(value: Number) -> Expr:
    """Return a constant; integral floats become integers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**62:
        value = int(value)
    return make_node(Op.CONST, (), (value,), float(value), float(value))


def var(name: str, low: Number = 1, high: Number = math.inf, group: Group | None = None) -> Expr:
    """Return a variable with values in [low, high]; the same name with other bounds is another variable.

    Args:
        name: The name.
        low: The least value.
        high: The greatest value.
        group: The group of variables that multiply to a known number; a complete product becomes that number.
    """
    return make_node(Op.VAR, (), (name, low, high, group), float(low), float(high))


def as_expr(value: Expr | Number) -> Expr:
    """Return an expression; numbers become constants."""
    return value if isinstance(value, Expr) else const(value)


def add(terms: Iterable[Expr | Number]) -> Expr:
    """Return the sum of the terms, flat, with like terms collected."""
    return _add(tuple(terms))


@lru_cache(maxsize=REMEMBERED)
def _add(terms: tuple[Expr | Number, ...]) -> Expr:
    """Return the sum of the terms; cached."""
    constant: Number = 0
    coefficients: dict[Expr, Number] = {}
    for term in terms:
        if not isinstance(term, Expr):
            constant += term
            continue
        extra, parts = linear_parts(term)
        constant += extra
        for base, factor in parts:
            coefficients[base] = coefficients.get(base, 0) + factor
    nonzero = sorted(((b, c) for b, c in coefficients.items() if c != 0), key=by_order)
    return _sum(constant, nonzero)


def by_order(pair: tuple[Expr, Number]) -> int:
    """Return the sort key of a term or factor."""
    return pair[0].order


def _sum(constant: Number, parts: list[tuple[Expr, Number]]) -> Expr:
    """Return constant + Σ coefficient · term for sorted terms."""
    if not parts:
        return const(constant)
    if constant == 0 and len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    constant = const(constant).value
    low = constant + sum(_scaled_low(t, c) for t, c in parts)
    high = constant + sum(_scaled_high(t, c) for t, c in parts)
    payload = (constant, *(const(c).value for _, c in parts))
    return make_node(Op.ADD, tuple(t for t, _ in parts), payload, low, high)


def _scaled_low(term: Expr, factor: Number) -> float:
    """Return the lower bound of factor · term."""
    return factor * (term.low if factor > 0 else term.high)


def _scaled_high(term: Expr, factor: Number) -> float:
    """Return the upper bound of factor · term."""
    return factor * (term.high if factor > 0 else term.low)


def mul(factors: Iterable[Expr | Number]) -> Expr:
    """Return the product of the factors, flat, with exponents collected.

    A numeric factor becomes the coefficient of a one-term sum.
    """
    return _mul(tuple(factors))


@lru_cache(maxsize=REMEMBERED)
def _mul(factors: tuple[Expr | Number, ...]) -> Expr:
    """Return the product of the factors; cached."""
    coefficient: Number = 1
    exponents: dict[Expr, int] = {}
    for factor in factors:
        if not isinstance(factor, Expr):
            coefficient *= factor
            continue
        scale, parts = product_parts(factor)
        coefficient *= scale
        for base, exponent in parts:
            exponents[base] = exponents.get(base, 0) + exponent
    coefficient *= _complete(exponents)
    parts_left = sorted(((b, min(e, 1) if is_gate(b) else e) for b, e in exponents.items() if e), key=by_order)
    if coefficient == 0:
        return const(0)
    if len(parts_left) == 1 and parts_left[0][1] == 1 and parts_left[0][0].op is Op.ADD:
        # A number times a sum is a sum.
        constant, terms = linear_parts(parts_left[0][0])
        return _sum(constant * coefficient, [(t, c * coefficient) for t, c in terms])
    return _sum(0, [(_product(parts_left), coefficient)]) if parts_left else const(coefficient)


def _complete(exponents: dict[Expr, int]) -> Number:
    """Remove complete products of groups from `exponents`, and return the number that they equal."""
    members: dict[Group, list[Expr]] = {}
    for base, exponent in exponents.items():
        group = group_of(base)
        if group is not None and exponent:
            members.setdefault(group, []).append(base)
    factor: Number = 1
    for group, bases in members.items():
        if len(bases) < group.size:
            continue
        powers = [exponents[base] for base in bases]
        whole = min(powers) if min(powers) > 0 else max(powers) if max(powers) < 0 else 0
        factor *= group.product**whole
        for base in bases:
            exponents[base] -= whole
    return factor


def _product(parts: list[tuple[Expr, int]]) -> Expr:
    """Return Π base ^ exponent for sorted factors."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    low, high = 1.0, 1.0
    group_bounds: dict[Group, tuple[float, float]] = {}
    for base, exponent in parts:
        group = group_of(base)
        if group is not None and exponent == 1:
            # The product of factors of one loop is bounded by its extent.
            inner, outer = group_bounds.get(group, (1.0, 1.0))
            group_bounds[group] = inner * base.low, min(outer * base.high, group.product)
        else:
            low, high = _interval_mul(low, high, *_interval_pow(base.low, base.high, exponent))
    for bounds in group_bounds.values():
        low, high = _interval_mul(low, high, *bounds)
    return make_node(Op.MUL, tuple(b for b, _ in parts), tuple(e for _, e in parts), low, high)


def _interval_mul(a: float, b: float, c: float, d: float) -> tuple[float, float]:
    """Return the product of the intervals [a, b] and [c, d], with 0 · ∞ = 0."""
    ends = [0.0 if 0 in (x, y) else x * y for x in (a, b) for y in (c, d)]
    return min(ends), max(ends)


def _interval_pow(low: float, high: float, exponent: int) -> tuple[float, float]:
    """Return the power of an interval."""
    if exponent < 0:
        if low <= 0 <= high:
            return -math.inf, math.inf
        low, high = 1 / high, 1 / low
        exponent = -exponent
    ends = low**exponent, high**exponent
    if exponent % 2 == 0 and low < 0 < high:
        return 0.0, max(ends)
    return min(ends), max(ends)


def power(base: Expr, exponent: int) -> Expr:
    """Return base ^ exponent for an integer exponent."""
    scale, parts = product_parts(base)
    if base.is_const:
        return const(base.value**exponent)
    return mul([scale**exponent, *(raised(b, e * exponent) for b, e in parts)])


def raised(base: Expr, exponent: int) -> Expr:
    """Return base ^ exponent of a base that is not a product."""
    return _product([(base, exponent)]) if exponent else const(1)


def floordiv(a: Expr | Number, b: Expr | Number) -> Expr:
    """Return ⌊a / b⌋ for b ≥ 1."""
    a, b = as_expr(a), as_expr(b)
    if a.is_const and b.is_const:
        return const(a.value // b.value)
    if b.is_const and b.value == 1:
        return a
    if a.low >= 0 and a.high < b.low:
        return const(0)
    low, high = _interval_mul(a.low, a.high, *_interval_pow(b.low, b.high, -1))
    return make_node(Op.FLOORDIV, (a, b), (), _floor(low), _floor(high))


def _floor(value: float) -> float:
    """Return the floor of a finite number; infinities and NaN are returned unchanged."""
    return float(math.floor(value)) if math.isfinite(value) else value


def ceildiv(a: Expr | Number, b: Expr | Number) -> Expr:
    """Return ⌈a / b⌉ for integers, b ≥ 1."""
    return floordiv(as_expr(a) + b - 1, b)


CONSTRUCTORS: dict[Op, Callable[[tuple[Expr, ...], Payload], Expr]] = {
    Op.CONST: lambda args, payload: const(payload[0]),
    Op.VAR: lambda args, payload: var(*payload),  # type: ignore[arg-type]
    Op.ADD: lambda args, payload: add([payload[0], *map(mul, zip(payload[1:], args, strict=True))]),  # type: ignore[arg-type, list-item]
    Op.MUL: lambda args, payload: mul(power(a, e) for a, e in zip(args, payload, strict=True)),  # type: ignore[arg-type]
    Op.FLOORDIV: lambda args, payload: floordiv(*args),
}
"""The function that builds a node of each operator from its parts; `comparison.py` adds more."""


def restore(op: Op, args: tuple[Expr, ...], payload: Payload) -> Expr:
    """Rebuild a node from its parts with the constructors, so that it is simplified, and shared after unpickling."""
    return CONSTRUCTORS[op](args, payload)
