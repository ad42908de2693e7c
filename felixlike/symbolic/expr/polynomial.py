"""Expand expressions, and prove that an expression is not negative.

(a + 1) · (b − 1)    =    a·b − a + b − 1                           (expanded)
                     =    a'·b' + 2·b'            ≥ 0               (a = 1 + a', b = 1 + b', where a, b ≥ 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from felixlike.symbolic.expr.expression import REMEMBERED, Expr, add, by_order, const, mul, raised
from felixlike.symbolic.expr.node import Number, Op, linear_parts, product_parts


@lru_cache(maxsize=REMEMBERED)
def expand(expr: Expr) -> Expr:
    """Expand products of sums, except inside min, max, gates, selects and negative powers."""
    return _from_polynomial(_polynomial(expr))


def _monomials(expr: Expr) -> Iterator[tuple[Number, list[tuple[Expr, int]]]]:
    """Yield the coefficient and the factors of each term of a sum."""
    constant, terms = linear_parts(expr)
    if constant:
        yield constant, []
    for term, factor in terms:
        yield factor, product_parts(term)[1]


_Polynomial: TypeAlias = dict[tuple[tuple[Expr, int], ...], Number]
"""The coefficient of each monomial; a monomial is a sorted tuple of (base, exponent)."""


def _polynomial(expr: Expr) -> _Polynomial:
    """Return the coefficient of each monomial of an expression."""
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
    """Return the product of two polynomials."""
    product: _Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            exponents = dict(left)
            for base, exponent in right:
                exponents[base] = exponents.get(base, 0) + exponent
            monomial = tuple(sorted(((b, e) for b, e in exponents.items() if e), key=by_order))
            product[monomial] = product.get(monomial, 0) + x * y
    return product


def _from_polynomial(polynomial: _Polynomial) -> Expr:
    """Return a polynomial as an expression."""
    return add(mul([c, *(raised(b, e) for b, e in m)]) for m, c in polynomial.items())


def nonnegative(expr: Expr) -> bool:
    """Return whether expr ≥ 0 can be proved from the bounds of its variables.

    The test is sufficient, not necessary. Every atom with a finite lower bound is written as bound + rest, with rest ≥
    0; non-negative coefficients then prove it. Plain intervals, and ⌊x / d⌋ ≥ ⌊y / d⌋ where x ≥ y, are tried too.
    """
    if expr.low >= 0:
        return True
    if expr.high < 0:
        return False
    polynomial = _without_rising_floors(_polynomial(expr))
    if any(exponent < 0 or not math.isfinite(base.low) for monomial in polynomial for base, exponent in monomial):
        return False
    return _rises(polynomial)


def _rises(polynomial: _Polynomial) -> bool:
    """Return whether no coefficient is negative after every atom is written as bound + rest.

    Atoms are substituted one at a time. All at once would make 2^degree monomials of one, and most parts are decided
    before the last atom.
    """
    atoms = {base: None for monomial in polynomial for base, _ in monomial}
    below = [base for base in atoms if base.low < 0]
    if not below and all(value >= 0 for value in polynomial.values()):
        return True
    if not atoms:
        return False
    falling = {base for monomial, value in polynomial.items() if value < 0 for base, _ in monomial}
    # Substituting an atom that occurs in no negative monomial keeps these monomials in one part.
    atom = next(iter([*below, *(base for base in atoms if base not in falling), *atoms]))
    return all(map(_rises, _shifted(polynomial, atom)))


def _shifted(polynomial: _Polynomial, atom: Expr) -> Iterator[_Polynomial]:
    """Yield the factor of each power of the rest, lowest first, with the atom written as bound + rest."""
    by_power: dict[int, _Polynomial] = {}
    for monomial, value in polynomial.items():
        exponent = next((e for base, e in monomial if base is atom), 0)
        by_power.setdefault(exponent, {})[tuple(pair for pair in monomial if pair[0] is not atom)] = value
    if len(by_power) == 1 and atom.low >= 0:  # the parts differ only by non-negative factors
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
    """Return a lower bound of the polynomial: k·⌊x / d⌋ − k·⌊y / d⌋ with x ≥ y is removed."""
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
