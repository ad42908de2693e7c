"""An index as TVM's simplifier wrote it, as a small tree, and what TVM's feature extractor reads from it.

Input: a simplified TVM expression. Output: `Written`. The extractor's bounds and coefficients depend on how an index is
written, not only on its value, so both are defined on the tree.
Follows TVM's per_store_feature.cc, const_int_bound.cc and modular_set.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from felixlike import _tvm
from felixlike.errors import UnsupportedSketch


@dataclass(frozen=True, slots=True)
class Written:
    """One node.

    Attributes:
        kind: TVM's name of the operator, "Var" or "Const".
        name: of a variable.
        value: of a constant.
        atoms: names of the variables in the tree.
        ends: least and greatest value of the type of a load or a cast."""

    kind: str
    args: tuple[Written, ...] = ()
    name: str = ""
    value: int = 0
    atoms: frozenset[str] = frozenset()
    ends: tuple[int, int] = (0, 0)


INFINITY = 2**63 - 1
"""TVM's value for infinity in bounds; negated for minus infinity."""

_BINARY = ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max")
_NOT_NEGATIVE = {"Div": "FloorDiv", "Mod": "FloorMod"}
"""Operators that round towards zero; supported programs apply them to non-negative numbers only."""


def from_tvm(node: Any) -> Written:
    """Return the tree of a TVM expression. Raises UnsupportedSketch for operators that indices do not have."""
    kind = type(node).__name__
    if kind == "IntImm":
        return Written("Const", value=int(node.value))
    if kind in ("Var", "PrimVar", "SizeVar"):
        name = str(node.name)
        return Written("Var", name=name, atoms=frozenset((name,)))
    kind = _NOT_NEGATIVE.get(kind, kind)
    inner: tuple[Any, ...]
    if kind in _BINARY:
        inner = (node.a, node.b)
    elif kind == "TensorLoad":
        inner = tuple(node.indices)
    elif kind == "Cast":
        inner = (node.value,)
    else:
        raise UnsupportedSketch(f"unsupported operator {kind} in an index", where=str(node)[:80])
    args = tuple(map(from_tvm, inner))
    ends = _ends(str(node.ty.dtype)) if kind in ("TensorLoad", "Cast") else (0, 0)
    return Written(kind, args, atoms=frozenset[str]().union(*(arg.atoms for arg in args)), ends=ends)


def _ends(dtype: str) -> tuple[int, int]:
    """Return the least and greatest value of a type."""
    if dtype == "bool":
        return 0, 1
    bits = _tvm.bits(dtype)
    if dtype.startswith("uint"):
        return 0, min(2**bits - 1, INFINITY)
    return (-INFINITY, INFINITY) if bits >= 64 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def bounds(node: Written, extents: Mapping[str, int]) -> tuple[int, int]:
    """Return least and greatest value by TVM's interval arithmetic; loops without an entry in `extents` are 0.

    For a remainder, TVM also uses what `multiples` returns for the dividend with all loops at their start: it first
    binds each loop to its start, and later does not widen the divisibility it has inferred."""
    match node.kind:
        case "Const":
            return node.value, node.value
        case "Var":
            return 0, extents.get(node.name, 1) - 1
        case "TensorLoad":
            return node.ends
        case "Cast":
            low, high = bounds(node.args[0], extents)
            return max(low, node.ends[0]), min(high, node.ends[1])
    (a, b), (c, d) = (bounds(arg, extents) for arg in node.args)
    match node.kind:
        case "Add":
            return _cut(a + c), _cut(b + d)
        case "Sub":
            return _cut(a - d), _cut(b - c)
        case "Mul":
            products = (a * c, a * d, b * c, b * d)
            return _cut(min(products)), _cut(max(products))
        case "FloorDiv":
            return (a if a == -INFINITY else a // c), (b if b == INFINITY else b // c)
        case "FloorMod":
            low, high = (a, b) if a >= 0 and b < c else (0, min(b, d - 1) if a >= 0 else d - 1)
            step, base = multiples(node.args[0])
            step = gcd(step, c)
            return (max(low, base % step), min(high, c - step + base % step)) if step > 1 else (low, high)
        case "Min":
            return min(a, c), min(b, d)
    return max(a, c), max(b, d)


def _cut(value: int) -> int:
    return max(-INFINITY, min(value, INFINITY))


_ANYTHING = (1, 0)


def multiples(node: Written) -> tuple[int, int]:
    """Return (step, base): with all loops at 0, TVM infers that the value is base plus a multiple of step.

    Follows TVM's modular_set.cc."""
    match node.kind:
        case "Const":
            return 0, node.value
        case "Var":
            return 0, 0
        case "TensorLoad":
            return _ANYTHING
        case "Cast":
            return multiples(node.args[0])
    (p, a), (q, b) = (multiples(arg) for arg in node.args)
    match node.kind:
        case "Add":
            return _entry(gcd(p, q), a + b)
        case "Sub":
            return _entry(gcd(p, q), a - b)
        case "Mul":
            return _entry(gcd(p * q, p * b, a * q), a * b)
        case "FloorDiv" if q == 0 and p % b == 0 and (a == 0 or (a > 0 and b > 0)):
            return _entry(p // b, a // b)
        case "FloorMod" if q == 0 and (a % gcd(p, b) == 0 or a > 0):
            return _entry(gcd(p, b), a % gcd(p, b))
        case "Min" | "Max":
            return _either((p, a), (q, b))
    return _ANYTHING


def _entry(step: int, base: int) -> tuple[int, int]:
    return step, base % step if step else base


def _either(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    step = gcd(first[0], second[0])
    if step == 0:
        return first if first == second else _ANYTHING
    a, b = first[1] % step, second[1] % step
    return _entry(step if a == b else gcd(a, b, step), a)


def coefficient(node: Written, name: str) -> int:
    """Return TVM's coefficient of a variable; 0 if the variable does not occur.

    TVM visits the tree, arguments first. After the variable was visited, each product with a constant sets the
    coefficient to that constant; a sum before any such product sets it to 1. If the variable occurs again afterwards,
    and no such product or sum follows, the coefficient is 2. So in i·64 + j·4 the coefficient of both i and j is 4."""
    if name not in node.atoms:
        return 0
    visitor = _CoefficientVisitor(name)
    visitor.visit(node)
    return visitor.coefficient


class _CoefficientVisitor:
    """State of one visit: whether the variable was visited, and whether a sum or a product has set the coefficient."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = self.summed = self.multiplied = False
        self._last = 1

    @property
    def coefficient(self) -> int:
        """The coefficient so far."""
        return self._last if self.summed or self.multiplied else 1

    def visit(self, node: Written) -> None:
        for arg in node.args:
            self.visit(arg)
        if node.kind == "Var":
            if node.name == self.name:
                self.seen, self._last = True, 2
        elif node.kind == "Mul" and self.seen and not self.summed:
            numbers = [arg.value for arg in node.args if arg.kind == "Const"]
            if numbers:
                self.multiplied, self._last = True, numbers[0]
        elif node.kind == "Add" and self.seen and not self.multiplied:
            self.summed, self._last = True, 1
