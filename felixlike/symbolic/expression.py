"""Hash-consed expressions over schedule variables: the language of extents, gates and formulas.

In: numbers and variables. Out: shared, canonical nodes; equal expressions are the same object, so that a set of
formulas is one graph. Sums and products are kept flat with collected like terms (as computer algebra systems do), but
products of sums stay factored unless `expand` is called, because a factored form is a monomial in log space.

Operators: + − × ÷ pow, floor division, min, max, select, and `at_least` (a gate: 1 where x ≥ k, else 0). Every node
knows an interval that holds its value; constructors use it to settle min, max, gates and selects at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias
from weakref import WeakValueDictionary

Number: TypeAlias = int | float
Payload: TypeAlias = tuple[object, ...]


class Op(Enum):
    """Node kinds.  The payload is: CONST (value,); VAR (name, low, high, group); ADD (constant, coefficient of each
    argument); MUL (exponent of each argument); AT_LEAST (threshold,); the rest ()."""

    CONST = auto()
    VAR = auto()
    ADD = auto()
    MUL = auto()
    FLOORDIV = auto()
    MIN = auto()
    MAX = auto()
    AT_LEAST = auto()
    SELECT = auto()


@dataclass(frozen=True, slots=True)
class Group:
    """Variables whose product is known: the factors of one tiled loop.

    name: unique among the groups of an expression.  product: what all of them multiply to.  size: how many there
    are."""

    name: str
    product: int
    size: int


class Expr:
    """An immutable node.  Compare with `is`; build with the operators and the functions of this module."""

    __slots__ = ("__weakref__", "args", "high", "low", "op", "order", "payload")

    op: Op
    args: tuple[Expr, ...]
    payload: Payload
    low: float
    high: float
    order: int
    """Position in the order of creation: arguments come before what is built of them."""

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
        from felixlike.symbolic.printing import to_text

        return to_text(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.op, self.args, self.payload))

    @property
    def is_const(self) -> bool:
        """Whether this is a number."""
        return self.op is Op.CONST

    @property
    def value(self) -> Number:
        """The number this constant stands for."""
        if self.op is not Op.CONST:
            raise TypeError(f"{self} is not a constant")
        return self.payload[0]  # type: ignore[return-value]

    @property
    def name(self) -> str:
        """The name of this variable."""
        if self.op is not Op.VAR:
            raise TypeError(f"{self} is not a variable")
        return str(self.payload[0])


_REMEMBERED = 100_000
"""Results kept of each of the slower operations; building a sketch's formulas repeats many of them."""

_nodes: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()
_created = 0


def _node(op: Op, args: tuple[Expr, ...], payload: Payload, low: float, high: float) -> Expr:
    """The one node with these parts."""
    global _created
    # 1 and 1.0 are equal as keys, but must not turn integers into floats for whoever came second.
    key = (op, tuple(map(id, args)), payload, tuple(map(type, payload)))
    found = _nodes.get(key)
    if found is not None:
        return found
    node = object.__new__(Expr)
    node.op, node.args, node.payload, node.low, node.high = op, args, payload, low, high
    _created += 1
    node.order = _created
    _nodes[key] = node
    return node


def _restore(op: Op, args: tuple[Expr, ...], payload: Payload) -> Expr:
    """Rebuild an unpickled node through the constructors, so that it is shared again."""
    match op:
        case Op.CONST:
            return const(payload[0])  # type: ignore[arg-type]
        case Op.VAR:
            return var(*payload)  # type: ignore[arg-type]
        case Op.ADD:
            numbers: tuple[Number, ...] = payload  # type: ignore[assignment]
            return add([numbers[0], *(mul((c, a)) for c, a in zip(numbers[1:], args, strict=True))])
        case Op.MUL:
            return mul(power(a, e) for a, e in zip(args, payload, strict=True))  # type: ignore[arg-type]
        case Op.AT_LEAST:
            return at_least(args[0], payload[0])  # type: ignore[arg-type]
        case Op.FLOORDIV:
            return floordiv(*args)
        case Op.MIN:
            return minimum(*args)
        case Op.MAX:
            return maximum(*args)
        case Op.SELECT:
            return select(*args)


def const(value: Number) -> Expr:
    """A number; integral floats become integers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**62:
        value = int(value)
    return _node(Op.CONST, (), (value,), float(value), float(value))


def var(name: str, low: Number = 1, high: Number = math.inf, group: Group | None = None) -> Expr:
    """A variable with values in [low, high]; the same name with other bounds is another variable.

    group: variables of one group multiply to a known number, so a complete product is written as that number."""
    return _node(Op.VAR, (), (name, low, high, group), float(low), float(high))


def as_expr(value: Expr | Number) -> Expr:
    """Numbers become constants."""
    return value if isinstance(value, Expr) else const(value)


def add(terms: Iterable[Expr | Number]) -> Expr:
    """A flat sum with like terms collected."""
    return _add(tuple(terms))


@lru_cache(maxsize=_REMEMBERED)
def _add(terms: tuple[Expr | Number, ...]) -> Expr:
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
    parts_left = sorted(((b, c) for b, c in coefficients.items() if c != 0), key=_by_order)
    return _sum(constant, parts_left)


def linear_parts(expr: Expr) -> tuple[Number, list[tuple[Expr, Number]]]:
    """expr = constant + Σ coefficient · term, where no term is a sum or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.ADD:
        numbers: tuple[Number, ...] = expr.payload  # type: ignore[assignment]
        return numbers[0], list(zip(expr.args, numbers[1:], strict=True))
    return 0, [(expr, 1)]


def _by_order(pair: tuple[Expr, Number]) -> int:
    return pair[0].order


def _sum(constant: Number, parts: list[tuple[Expr, Number]]) -> Expr:
    if not parts:
        return const(constant)
    if constant == 0 and len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    constant = const(constant).value
    low = constant + sum(_scaled_low(t, c) for t, c in parts)
    high = constant + sum(_scaled_high(t, c) for t, c in parts)
    payload = (constant, *(const(c).value for _, c in parts))
    return _node(Op.ADD, tuple(t for t, _ in parts), payload, low, high)


def _scaled_low(term: Expr, factor: Number) -> float:
    return factor * (term.low if factor > 0 else term.high)


def _scaled_high(term: Expr, factor: Number) -> float:
    return factor * (term.high if factor > 0 else term.low)


def mul(factors: Iterable[Expr | Number]) -> Expr:
    """A flat product with exponents collected; a numeric factor becomes the coefficient of a one-term sum."""
    return _mul(tuple(factors))


@lru_cache(maxsize=_REMEMBERED)
def _mul(factors: tuple[Expr | Number, ...]) -> Expr:
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
    parts_left = sorted(((b, min(e, 1) if is_gate(b) else e) for b, e in exponents.items() if e), key=_by_order)
    if coefficient == 0:
        return const(0)
    if len(parts_left) == 1 and parts_left[0][1] == 1 and parts_left[0][0].op is Op.ADD:
        # A number times a sum is again a sum.
        constant, terms = linear_parts(parts_left[0][0])
        return _sum(constant * coefficient, [(t, c * coefficient) for t, c in terms])
    return _sum(0, [(_product(parts_left), coefficient)]) if parts_left else const(coefficient)


def _complete(exponents: dict[Expr, int]) -> Number:
    """Take complete products of groups out of `exponents`; the number they stand for."""
    members: dict[Group, list[Expr]] = {}
    for base, exponent in exponents.items():
        group = group_of(base)
        if group is not None and exponent:
            members.setdefault(group, []).append(base)
    factor: Number = 1
    for group, found in members.items():
        if len(found) < group.size:
            continue
        powers = [exponents[base] for base in found]
        whole = min(powers) if min(powers) > 0 else max(powers) if max(powers) < 0 else 0
        factor *= group.product**whole
        for base in found:
            exponents[base] -= whole
    return factor


def group_of(expr: Expr) -> Group | None:
    """The group a variable belongs to."""
    return expr.payload[3] if expr.op is Op.VAR else None  # type: ignore[return-value]


def is_gate(expr: Expr) -> bool:
    """Whether the value is 0 or 1: a test, 1 − a gate, or a product of gates."""
    if expr.op is Op.AT_LEAST:
        return True
    if expr.op is Op.MUL:
        return all(map(is_gate, expr.args))
    return expr.op is Op.ADD and expr.payload == (1, -1) and is_gate(expr.args[0])


def product_parts(expr: Expr) -> tuple[Number, list[tuple[Expr, int]]]:
    """expr = coefficient · Π base ^ exponent, where no base is a product or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.MUL:
        return 1, list(zip(expr.args, expr.payload, strict=True))  # type: ignore[arg-type]
    if expr.op is Op.ADD and len(expr.args) == 1 and expr.payload[0] == 0:
        scale, parts = product_parts(expr.args[0])
        return scale * expr.payload[1], parts  # type: ignore[operator]
    return 1, [(expr, 1)]


def _product(parts: list[tuple[Expr, int]]) -> Expr:
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    low, high = 1.0, 1.0
    together: dict[Group, tuple[float, float]] = {}
    for base, exponent in parts:
        group = group_of(base)
        if group is not None and exponent == 1:
            # Factors of one loop are bounded together by its extent.
            inner, outer = together.get(group, (1.0, 1.0))
            together[group] = inner * base.low, min(outer * base.high, group.product)
        else:
            low, high = _interval_mul(low, high, *_interval_pow(base.low, base.high, exponent))
    for bounds in together.values():
        low, high = _interval_mul(low, high, *bounds)
    return _node(Op.MUL, tuple(b for b, _ in parts), tuple(e for _, e in parts), low, high)


def _interval_mul(a: float, b: float, c: float, d: float) -> tuple[float, float]:
    ends = [0.0 if 0 in (x, y) else x * y for x in (a, b) for y in (c, d)]
    return min(ends), max(ends)


def _interval_pow(low: float, high: float, exponent: int) -> tuple[float, float]:
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
    """base ^ exponent for an integer exponent."""
    scale, parts = product_parts(base)
    if base.is_const:
        return const(base.value**exponent)
    return mul([scale**exponent, *(_power_of(b, e * exponent) for b, e in parts)])


def _power_of(base: Expr, exponent: int) -> Expr:
    return _product([(base, exponent)]) if exponent else const(1)


def floordiv(a: Expr | Number, b: Expr | Number) -> Expr:
    """⌊a / b⌋ for b ≥ 1."""
    a, b = as_expr(a), as_expr(b)
    if a.is_const and b.is_const:
        return const(a.value // b.value)
    if b.is_const and b.value == 1:
        return a
    if a.low >= 0 and a.high < b.low:
        return const(0)
    low, high = _interval_mul(a.low, a.high, *_interval_pow(b.low, b.high, -1))
    return _node(Op.FLOORDIV, (a, b), (), _floor(low), _floor(high))


def _floor(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def ceildiv(a: Expr | Number, b: Expr | Number) -> Expr:
    """⌈a / b⌉ for integers, b ≥ 1."""
    return floordiv(as_expr(a) + b - 1, b)


def minimum(a: Expr | Number, b: Expr | Number) -> Expr:
    """The smaller of two."""
    a, b = as_expr(a), as_expr(b)
    if a is b or a.high <= b.low or nonnegative(b - a):
        return a
    if b.high <= a.low or nonnegative(a - b):
        return b
    a, b = sorted((a, b), key=lambda e: e.order)
    return _node(Op.MIN, (a, b), (), min(a.low, b.low), min(a.high, b.high))


def maximum(a: Expr | Number, b: Expr | Number) -> Expr:
    """The larger of two."""
    a, b = as_expr(a), as_expr(b)
    if a is b or a.low >= b.high or nonnegative(a - b):
        return a
    if b.low >= a.high or nonnegative(b - a):
        return b
    a, b = sorted((a, b), key=lambda e: e.order)
    return _node(Op.MAX, (a, b), (), max(a.low, b.low), max(a.high, b.high))


def at_least(x: Expr | Number, threshold: int) -> Expr:
    """The gate [x ≥ threshold] of an integer-valued x: 1 or 0."""
    x = as_expr(x)
    if x.low >= threshold:
        return const(1)
    if x.high < threshold:
        return const(0)
    if x.op is Op.AT_LEAST:  # a gate of a gate: [g ≥ 1] = g
        return x
    return _node(Op.AT_LEAST, (x,), (threshold,), 0.0, 1.0)


def at_most(x: Expr | Number, threshold: int) -> Expr:
    """The gate [x ≤ threshold] of an integer-valued x."""
    return 1 - at_least(x, threshold + 1)


def equals(a: Expr | Number, b: Expr | Number) -> Expr:
    """The gate [a = b] of integer-valued expressions."""
    difference = expand(as_expr(a) - b)
    if difference.is_const:
        return const(int(difference.value == 0))
    if nonnegative(difference):
        return at_most(difference, 0)
    if nonnegative(-difference):
        return at_least(difference, 0)
    return at_least(difference, 0) * at_most(difference, 0)


def select(gate: Expr, then: Expr | Number, otherwise: Expr | Number) -> Expr:
    """`then` where the gate is 1, `otherwise` where it is 0."""
    then, otherwise = as_expr(then), as_expr(otherwise)
    if gate.is_const:
        return then if gate.value else otherwise
    if then is otherwise:
        return then
    if then.is_const and otherwise.is_const and then.value == 1 and otherwise.value == 0:
        return gate
    low, high = min(then.low, otherwise.low), max(then.high, otherwise.high)
    return _node(Op.SELECT, (gate, then, otherwise), (), low, high)


def variables(roots: Iterable[Expr]) -> tuple[Expr, ...]:
    """The variables that occur, in the order of their creation."""
    return tuple(e for e in topological(roots) if e.op is Op.VAR)


def topological(roots: Iterable[Expr]) -> list[Expr]:
    """Every node reachable from the roots, arguments first."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.args)
    return sorted(seen, key=lambda e: e.order)


@lru_cache(maxsize=_REMEMBERED)
def expand(expr: Expr) -> Expr:
    """Products of sums multiplied out, outside min, max, gates, selects and negative powers."""
    return _from_polynomial(_polynomial(expr))


def _monomials(expr: Expr) -> Iterator[tuple[Number, list[tuple[Expr, int]]]]:
    constant, terms = linear_parts(expr)
    if constant:
        yield constant, []
    for term, factor in terms:
        yield factor, product_parts(term)[1]


_Polynomial: TypeAlias = dict[tuple[tuple[Expr, int], ...], Number]


def _polynomial(expr: Expr) -> _Polynomial:
    """Coefficient of each monomial; a monomial is a sorted tuple of (base, exponent)."""
    total: _Polynomial = {}
    for factor, parts in _monomials(expr):
        product: _Polynomial = {(): factor}
        for base, exponent in parts:
            if base.op is Op.ADD and exponent > 0:
                for _ in range(exponent):
                    product = _poly_mul(product, _polynomial(base))
            else:
                product = _poly_mul(product, {((base, exponent),): 1})
        for monomial, value in product.items():
            total[monomial] = total.get(monomial, 0) + value
    return {m: c for m, c in total.items() if c != 0}


def _poly_mul(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    product: _Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            exponents = dict(left)
            for base, exponent in right:
                exponents[base] = exponents.get(base, 0) + exponent
            monomial = tuple(sorted(((b, e) for b, e in exponents.items() if e), key=_by_order))
            product[monomial] = product.get(monomial, 0) + x * y
    return product


def _from_polynomial(polynomial: _Polynomial) -> Expr:
    return add(mul([c, *(_power_of(b, e) for b, e in m)]) for m, c in polynomial.items())


def nonnegative(expr: Expr) -> bool:
    """Whether expr ≥ 0 can be proved from the bounds of its variables.

    Sufficient, not necessary: every atom with a finite lower bound is written as bound + rest, rest ≥ 0; then
    non-negative coefficients prove it.  Also tried: plain intervals, and ⌊x / d⌋ ≥ ⌊y / d⌋ where x ≥ y."""
    if expr.low >= 0:
        return True
    if expr.high < 0:
        return False
    polynomial = _without_rising_floors(_polynomial(expr))
    if any(exponent < 0 or not math.isfinite(base.low) for monomial in polynomial for base, exponent in monomial):
        return False
    return _rises(polynomial)


def _rises(polynomial: _Polynomial) -> bool:
    """Whether no coefficient is negative once every atom is written as bound + rest.

    Atom by atom, for all at once make 2^degree monomials of one; most parts are settled before the last atom."""
    atoms = {base: None for monomial in polynomial for base, _ in monomial}
    below = [base for base in atoms if base.low < 0]
    if not below and all(value >= 0 for value in polynomial.values()):
        return True
    if not atoms:
        return False
    falling = {base for monomial, value in polynomial.items() if value < 0 for base, _ in monomial}
    # An atom that no negative monomial has leaves them in one part.
    atom = next(iter([*below, *(base for base in atoms if base not in falling), *atoms]))
    return all(map(_rises, _shifted(polynomial, atom)))


def _shifted(polynomial: _Polynomial, atom: Expr) -> Iterator[_Polynomial]:
    """With the atom written as bound + rest, the factor of each power of the rest, lowest first."""
    by_power: dict[int, _Polynomial] = {}
    for monomial, value in polynomial.items():
        exponent = next((e for base, e in monomial if base is atom), 0)
        by_power.setdefault(exponent, {})[tuple(pair for pair in monomial if pair[0] is not atom)] = value
    if len(by_power) == 1 and atom.low >= 0:  # all the same but for numbers that are not negative
        yield from by_power.values()
        return
    bound = const(atom.low).value
    for power in range(max(by_power) + 1):
        total: _Polynomial = {}
        for exponent, part in by_power.items():
            scale = math.comb(exponent, power) * bound ** max(exponent - power, 0)
            for monomial, value in part.items() if scale else ():
                total[monomial] = total.get(monomial, 0) + value * scale
        yield {monomial: value for monomial, value in total.items() if value}


def _without_rising_floors(polynomial: _Polynomial) -> _Polynomial:
    """No more than the polynomial: of k·⌊x / d⌋ − k·⌊y / d⌋ with x ≥ y nothing is left."""
    floors = {
        monomial[0][0]: (monomial, value)
        for monomial, value in polynomial.items()
        if len(monomial) == 1 and monomial[0][0].op is Op.FLOORDIV and monomial[0][1] == 1
    }
    left = dict(polynomial)
    for lower, (falling, down) in floors.items():
        for upper, (rising, up) in floors.items():
            if down >= 0 or up < -down or lower.args[1] is not upper.args[1] or rising not in left:
                continue
            if nonnegative(expand(upper.args[0] - lower.args[0])):
                del left[falling]
                left[rising] = up + down
                if not left[rising]:
                    del left[rising]
                break
    return left


def substitute(expr: Expr, values: Mapping[Expr, Expr | Number]) -> Expr:
    """expr with variables replaced; nodes are rebuilt and simplified anew."""
    done: dict[Expr, Expr] = {v: as_expr(e) for v, e in values.items()}
    for node in topological([expr]):
        if node not in done:
            done[node] = rebuild(node, tuple(done[a] for a in node.args))
    return done[expr]


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node's operator applied to other arguments."""
    if args == node.args:
        return node
    return _restore(node.op, args, node.payload)
