"""Integer values as linear sums: constant + Σ coefficient · atom, with concrete sizes.

Input: a value, sizes. Output: a `Linear`. Atoms are indices, floor divisions of sums by a number, and all other values
("opaque"). Range inference solves a sum for an index. The bounds of a sum are tighter than those of its parts one by
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from felixlike.tc.program import Binary, Choose, Convert, Index, Literal, Read, Size, Unary, Value, walk
from felixlike.tc.scalars import is_integral, limits

Interval = tuple[int, int]
"""Least and greatest value."""

_WIDE = ("int32", "int64")
"""Types of linear sums. Those of narrower types often wrap, so that they are opaque."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor of a term: an index by its name, ⌊inner / divisor⌋ with divisor > 1, or an opaque value.

    key: Equal for atoms of the same value. dtype: The type of the inner sum.
    """

    key: tuple[object, ...]
    index: str = ""
    inner: Linear | None = None
    divisor: int = 1
    dtype: str = ""
    opaque: Value | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum constant + Σ coefficient · atom; coefficients are not 0."""

    constant: int
    terms: tuple[tuple[int, Atom], ...] = ()

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return self + factor · other."""
        terms_by_key = {atom.key: (coefficient, atom) for coefficient, atom in self.terms}
        for coefficient, atom in other.terms:
            before = terms_by_key.get(atom.key, (0, atom))[0]
            terms_by_key[atom.key] = (before + factor * coefficient, atom)
        terms = tuple((c, atom) for c, atom in terms_by_key.values() if c)
        return Linear(self.constant + factor * other.constant, terms)

    def times(self, factor: int) -> Linear:
        """Return the sum multiplied by a number."""
        return Linear(0).plus(self, factor)


def linear(value: Value, sizes: Mapping[str, int]) -> Linear:
    """Return an integer value as a sum."""
    match value:
        case Literal() if isinstance(value.value, int):
            return Linear(value.value)
        case Size():
            return Linear(sizes[value.name])
        case Index():
            return Linear(0, ((1, Atom(("index", value.name), index=value.name)),))
        case Convert() if is_integral(value.value.dtype) and value.dtype in _WIDE:
            # A sum in int32 may wrap before it becomes an int64.
            is_leaf = not isinstance(value.value, Unary | Binary) and limits(value.value.dtype)[1] <= limits("int32")[1]
            if is_leaf or value.dtype == value.value.dtype:
                return linear(value.value, sizes)
        case Unary() if value.operator == "-" and value.dtype in _WIDE:
            return linear(value.value, sizes).times(-1)
        case Binary() if value.dtype in _WIDE:
            return _binary(value, sizes)
    return _opaque(value)


def _opaque(value: Value) -> Linear:
    return Linear(0, ((1, Atom(("opaque", id(value)), opaque=value)),))


def _binary(value: Binary, sizes: Mapping[str, int]) -> Linear:
    if value.operator not in ("+", "-", "*", "/"):
        return _opaque(value)
    left, right = linear(value.left, sizes), linear(value.right, sizes)
    match value.operator:
        case "+":
            return left.plus(right)
        case "-":
            return left.plus(right, -1)
        case "*" if not right.terms:
            return left.times(right.constant)
        case "*" if not left.terms:
            return right.times(left.constant)
        case "/" if not right.terms and right.constant:
            return _floor(left, right.constant, value.dtype)
    return _opaque(value)


def _floor(sum_: Linear, divisor: int, dtype: str) -> Linear:
    """Return ⌊sum / divisor⌋. Factors are not cancelled, since the sum may wrap in its type before it is divided."""
    if divisor < 0:
        sum_, divisor = sum_.times(-1), -divisor
    if divisor == 1 or not sum_.terms:
        return Linear(sum_.constant // divisor, sum_.terms)
    key = ("floor", divisor, sum_.constant, *((c, atom.key) for c, atom in sum_.terms))
    return Linear(0, ((1, Atom(key, inner=sum_, divisor=divisor, dtype=dtype)),))


def indices_of(atom: Atom) -> frozenset[str]:
    """Return the indices that an atom depends on."""
    if atom.index:
        return frozenset({atom.index})
    if atom.inner is not None:
        return frozenset().union(*(indices_of(inner) for _, inner in atom.inner.terms))
    assert atom.opaque is not None
    return frozenset(part.name for part in walk(atom.opaque) if isinstance(part, Index))


def depends_on_data(atom: Atom) -> bool:
    """Return whether an atom depends on tensor contents."""
    if atom.inner is not None:
        return any(depends_on_data(inner) for _, inner in atom.inner.terms)
    return atom.opaque is not None and any(isinstance(part, Read) for part in walk(atom.opaque))


def interval(value: Value, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval:
    """Return bounds of an integer value: never too narrow, exact for sums of indices."""
    exact = interval_of(linear(value, sizes), domain, sizes)
    return _within(limits(value.dtype), exact) if value.dtype in _WIDE else exact


def may_wrap(value: Unary | Binary, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> bool:
    """Return whether an operator's result has the type int32 or uint32, and may exceed it."""
    if value.dtype not in ("int32", "uint32"):
        return False
    sum_ = linear(value, sizes)
    is_opaque = any(atom.opaque is value for _, atom in sum_.terms)
    exact = _result(value, domain, sizes) if is_opaque else interval_of(sum_, domain, sizes)
    return exact is not None and _within(limits(value.dtype), exact) != exact


def interval_of(sum_: Linear, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval:
    """Return bounds of a sum."""
    low = high = sum_.constant
    for coefficient, atom in sum_.terms:
        at_low, at_high = _atom_interval(atom, domain, sizes)
        ends = (coefficient * at_low, coefficient * at_high)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _atom_interval(atom: Atom, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval:
    if atom.index:
        return domain[atom.index]
    if atom.inner is not None:
        low, high = _within(limits(atom.dtype), interval_of(atom.inner, domain, sizes))
        return low // atom.divisor, high // atom.divisor
    assert atom.opaque is not None
    return _opaque_interval(atom.opaque, domain, sizes)


def _opaque_interval(value: Value, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval:
    """Return bounds of an opaque value, those of its type if nothing else is known."""
    if value.dtype == "bool":
        return 0, 1
    whole = limits(value.dtype) if is_integral(value.dtype) else limits("int64")
    match value:
        case Convert() if is_integral(value.value.dtype) or value.value.dtype == "bool":
            return _within(whole, interval(value.value, domain, sizes))
        case Choose():
            left, right = interval(value.left, domain, sizes), interval(value.right, domain, sizes)
            return min(left[0], right[0]), max(left[1], right[1])
        case Unary() | Binary() if is_integral(value.dtype):
            return _within(whole, _result(value, domain, sizes))
    return whole


def _result(value: Unary | Binary, domain: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval | None:
    """Return bounds of the exact result of an operator, before it wraps; None if unknown."""
    if isinstance(value, Unary):
        low, high = interval(value.value, domain, sizes)
        return -high, -low
    left, right = interval(value.left, domain, sizes), interval(value.right, domain, sizes)
    return _combined(value.operator, left, right)


def _within(whole: Interval, exact: Interval | None) -> Interval:
    """Return the bounds of a result, those of its type if they are unknown or the result may wrap."""
    return exact if exact is not None and whole[0] <= exact[0] and exact[1] <= whole[1] else whole


def _combined(operator: str, left: Interval, right: Interval) -> Interval | None:
    """Return bounds of an operator applied to two bounded values; None if unknown."""
    match operator:
        case "min":
            return min(left[0], right[0]), min(left[1], right[1])
        case "max":
            return max(left[0], right[0]), max(left[1], right[1])
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case "/" if right[0] > 0 or right[1] < 0:
            corners = [a // b for a in left for b in right]
            return min(corners), max(corners)
        case "%" if right[0] > 0:
            return left if left[0] >= 0 and left[1] < right[0] else (0, right[1] - 1)
    return None
