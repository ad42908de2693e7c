"""Encode exact expressions as tables of facts that egglog reads in bulk.

Input: expressions. Output: one tab-separated table for each operator, one row per node. Loading tables is about 400
times faster than running one `let` command per node. Sums are written as positive part − negative part, so logarithms
exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Number, Op, linear_parts
from felixlike.symbolic.expr.traversal import topological

TABLES: dict[str, tuple[str, ...]] = {
    "Number": ("f64",),
    "Variable": ("String",),
    "Shifted": ("String",),
    "Sum": ("Num", "Num"),
    "Difference": ("Num", "Num"),
    "Product": ("Num", "Num"),
    "Quotient": ("Num", "Num"),
    "Power": ("Num", "f64"),
    "FloorDivide": ("Num", "Num"),
    "Minimum": ("Num", "Num"),
    "Maximum": ("Num", "Num"),
    "AtLeast": ("Num", "f64"),
    "Select": ("Num", "Num", "Num"),
}
"""The argument types of each operator. The first column of every table is the node's number."""


class Encoder:
    """Number nodes and collect table rows.

    Args:
        shifted: Names of variables that may be 0; their column is log(1 + value).
    """

    def __init__(self, shifted: frozenset[str]) -> None:
        self._shifted = shifted
        self._rows: dict[tuple[object, ...], int] = {}
        self._done: dict[Expr, int] = {}

    def encode(self, roots: Sequence[Expr]) -> list[int]:
        """Return the node numbers of the roots."""
        for node in topological(roots):
            self._done[node] = self._encode(node)
        return [self._done[root] for root in roots]

    def write(self, folder: Path, roots: Sequence[int]) -> str:
        """Write the tables, and return the egglog program that declares, reads and joins them."""
        tables: dict[str, list[str]] = {name: [] for name in TABLES}
        logs: list[str] = []
        for (op, *args), number in self._rows.items():
            tables[str(op)].append("\t".join([str(number), *map(_field, args)]))
            if op == "Number" and isinstance(args[0], float) and args[0] > 0:
                logs.append(f"{number}\t{_field(math.log(args[0]))}")
        lines = []
        for name, rows in tables.items():
            lines += _table(folder, f"Fact{name}", ("i64", *_stored(TABLES[name])), rows, _union(name))
        log_rule = "(rule ((FactLog o c)) ((union (Log (Node o)) (Number c))) :ruleset load)"
        lines += _table(folder, "FactLog", ("i64", "f64"), logs, log_rule)
        root_rule = "(rule ((FactRoot i o)) ((union (Root i) (Smoothed (Log1p (Node o))))) :ruleset load)"
        root_rows = [f"{i}\t{number}" for i, number in enumerate(roots)]
        lines += _table(folder, "FactRoot", ("i64", "i64"), root_rows, root_rule)
        return "\n".join(lines)

    def _row(self, op: str, *args: int | float | str) -> int:
        """Return the number of a node, adding a row if it is new."""
        return self._rows.setdefault((op, *args), len(self._rows))

    def _encode(self, node: Expr) -> int:
        """Return the number of a node whose arguments are encoded."""
        args = [self._done[a] for a in node.args]
        match node.op:
            case Op.CONST:
                return self._number(node.value)
            case Op.VAR:
                return self._row("Shifted" if node.name in self._shifted else "Variable", node.name)
            case Op.ADD:
                return self._sum(node)
            case Op.MUL:
                return self._product(node)
            case Op.FLOORDIV:
                return self._row("FloorDivide", *args)
            case Op.MIN:
                return self._row("Minimum", *args)
            case Op.MAX:
                return self._row("Maximum", *args)
            case Op.SELECT:
                return self._row("Select", *args)
            case Op.AT_LEAST:
                return self._gate(node)

    def _number(self, value: Number) -> int:
        """Return the number of a constant's node."""
        return self._row("Number", float(value))

    def _chain(self, op: str, members: list[int]) -> int:
        """Return the node of a sum or product as a balanced tree, since rules need one iteration per level."""
        while len(members) > 1:
            pairs = zip(members[::2], members[1::2], strict=False)
            members = [self._row(op, a, b) for a, b in pairs] + members[len(members) & ~1 :]
        return members[0]

    def _sum(self, node: Expr) -> int:
        """Return the node of a sum: positive part − negative part."""
        positive, negative = self._parts(node)
        if not negative:
            return self._chain("Sum", positive)
        minuend = self._chain("Sum", positive) if positive else self._number(0)
        return self._row("Difference", minuend, self._chain("Sum", negative))

    def _parts(self, node: Expr) -> tuple[list[int], list[int]]:
        """Return the positive and the negative terms of a sum, all as positive numbers."""
        constant, terms = linear_parts(node)
        positive: list[int] = []
        negative: list[int] = []
        for term, factor in terms:
            size = abs(factor)
            scaled = self._done[term] if size == 1 else self._row("Product", self._number(size), self._done[term])
            (positive if factor > 0 else negative).append(scaled)
        if constant:
            (positive if constant > 0 else negative).append(self._number(abs(constant)))
        return positive, negative

    def _product(self, node: Expr) -> int:
        """Return the node of a product: numerator ÷ denominator."""
        numerator: list[int] = []
        denominator: list[int] = []
        for base, exponent in zip(node.args, node.payload, strict=True):
            assert isinstance(exponent, int)
            size = abs(exponent)
            number = self._done[base] if size == 1 else self._row("Power", self._done[base], float(size))
            (numerator if exponent > 0 else denominator).append(number)
        top = self._chain("Product", numerator) if numerator else self._number(1)
        return self._row("Quotient", top, self._chain("Product", denominator)) if denominator else top

    def _gate(self, node: Expr) -> int:
        """Return the node of [x ≥ k]; where x = p − n with variables in n, that of [p / (n + k − ½) ≥ 1]."""
        (x,), k = node.args, node.payload[0]
        assert isinstance(k, int)
        if x.op is Op.VAR and x.name in self._shifted:
            shifted = self._row("Sum", self._done[x], self._number(1))
            return self._row("AtLeast", shifted, math.log(threshold(k + 1)))
        constant, terms = linear_parts(x)
        negative = [(t, -c) for t, c in terms if c < 0]
        if not negative:
            return self._row("AtLeast", self._done[x], math.log(threshold(k)))
        positive = [self._scaled(t, c) for t, c in terms if c > 0]
        divisor_terms = [self._scaled(t, c) for t, c in negative]
        limit = k - 0.5 - constant
        if limit < 0:
            positive.append(self._number(-limit))
        elif limit > 0:
            divisor_terms.append(self._number(limit))
        ratio = self._row("Quotient", self._chain("Sum", positive), self._chain("Sum", divisor_terms))
        return self._row("AtLeast", ratio, 0.0)

    def _scaled(self, term: Expr, factor: Number) -> int:
        """Return the node of factor · term."""
        return self._done[term] if factor == 1 else self._row("Product", self._number(factor), self._done[term])


def threshold(k: int) -> float:
    """Return the middle of the smooth gate that replaces the integer test [x ≥ k].

    For small k it lies between k − 1 and k. Products of tile factors that exceed a limit exceed it by a factor of at
    least 9/8, mostly 3/2 or 2. For large k the middle therefore moves up, so that the limit itself, which good
    schedules often meet exactly, is well inside.
    """
    if k <= 1:
        return 0.5
    return math.sqrt((k - 1) * max(k, 1.44 * (k - 1)))


def _stored(types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the column types of a table: nodes are stored as their numbers."""
    return tuple("i64" if t == "Num" else t for t in types)


def _field(value: object) -> str:
    """Return a value as text of a table's field."""
    return repr(value) if isinstance(value, float) else str(value)


def _union(name: str) -> str:
    """Return the egglog rule that joins the rows of a table with its terms.

    For "Sum": (rule ((FactSum o a b)) ((union (Node o) (Sum (Node a) (Node b)))) :ruleset load)
    """
    letters = [f"a{i}" for i in range(len(TABLES[name]))]
    terms = [f"(Node {x})" if t == "Num" else x for x, t in zip(letters, TABLES[name], strict=True)]
    pattern = f"(Fact{name} o {' '.join(letters)})"
    return f"(rule ({pattern}) ((union (Node o) ({name} {' '.join(terms)}))) :ruleset load)"


def _table(folder: Path, name: str, types: tuple[str, ...], rows: list[str], rule: str) -> list[str]:
    """Write a table, and return the egglog commands that declare and read it."""
    if not rows:
        return []
    (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return [f"(relation {name} ({' '.join(types)}))", rule, f'(input {name} "{name}.tsv")']
