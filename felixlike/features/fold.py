"""Write products of tile factors short: t0·t1·t2·t3 of a loop of extent 512 is 512.

In: the groups of factors of a sketch. Out: `Fold`, a function on expressions that is exact at every valid point, because
there the factors of a loop multiply to its extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from felixlike.symbolic.expression import (
    Expr,
    Number,
    Op,
    add,
    linear_parts,
    mul,
    power,
    product_parts,
    rebuild,
    topological,
)
from felixlike.symbolic.trace import groups
from felixlike.symbolic.variables import Kind, Variable


class Fold:
    """Rewrites expressions bottom-up; results are remembered."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._groups: list[tuple[frozenset[Expr], int]] = []
        for _, columns in groups(variables):
            members = [variables[c] for c in columns]
            if members[0].kind is Kind.TILE and not all(m.fixed for m in members):
                free = frozenset(m.expression for m in members if not m.fixed)
                self._groups.append((free, members[0].extent))
        self._group_of = {e: i for i, (members, _) in enumerate(self._groups) for e in members}
        self._done: dict[Expr, Expr] = {}

    def __call__(self, expression: Expr) -> Expr:
        """The expression with complete products of factors replaced by extents."""
        if expression in self._done:
            return self._done[expression]
        for node in topological([expression]):
            if node not in self._done:
                self._done[node] = self._fold(node)
        return self._done[expression]

    def all(self, expressions: Iterable[Expr]) -> tuple[Expr, ...]:
        """Each of several expressions folded."""
        return tuple(self(e) for e in expressions)

    def _fold(self, node: Expr) -> Expr:
        if node.op is Op.ADD:
            constant, terms = linear_parts(node)
            return add([constant, *(self._done[t] * c for t, c in terms)])
        if node.op is Op.MUL:
            return self._product(mul(power(self._done[b], e) for b, e in product_parts(node)[1]))
        return rebuild(node, tuple(self._done[a] for a in node.args))

    def _product(self, product: Expr) -> Expr:
        scale, parts = product_parts(product)
        exponents = dict(parts)
        factor: Number = scale
        for group in {self._group_of[b] for b in exponents if b in self._group_of}:
            members, extent = self._groups[group]
            powers = [exponents.get(m, 0) for m in members]
            whole = min(powers) if min(powers) > 0 else max(powers) if max(powers) < 0 else 0
            if whole:
                factor = factor * extent**whole
                for m in members:
                    exponents[m] -= whole
        return mul([factor, *(power(b, e) for b, e in exponents.items())])
