"""An index as TVM's simplifier wrote it: a small tree, and what TVM's feature extractor reads from it.

In: a simplified TVM expression. Out: `Written`. The extractor's bounds and coefficients depend on how an index is
written, not only on its value, so both are defined on the tree.
Follows TVM's per_store_feature.cc and const_int_bound.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from felixlike.errors import UnsupportedSketch


@dataclass(frozen=True, slots=True)
class Written:
    """One node.  kind: TVM's name of the operator, "Var" or "Const".  name: of a variable.  value: of a number.
    atoms: names of the variables in the tree."""

    kind: str
    args: tuple[Written, ...] = ()
    name: str = ""
    value: int = 0
    atoms: frozenset[str] = frozenset()


_BINARY = ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max")


def from_tvm(node: Any) -> Written:
    """The tree of a TVM expression. Raises UnsupportedSketch for operators that indices do not have."""
    kind = type(node).__name__
    if kind == "IntImm":
        return Written("Const", value=int(node.value))
    if kind in ("Var", "PrimVar", "SizeVar"):
        name = str(node.name)
        return Written("Var", name=name, atoms=frozenset((name,)))
    if kind not in _BINARY:
        raise UnsupportedSketch(f"{kind} has no place in an index", where=str(node)[:80])
    args = (from_tvm(node.a), from_tvm(node.b))
    return Written(kind, args, atoms=args[0].atoms | args[1].atoms)


def bounds(node: Written, extents: Mapping[str, int]) -> tuple[int, int]:
    """Least and greatest value by TVM's interval arithmetic while the loops of `extents` run, the others at 0.

    A remainder counts as the single value it has with all loops at 0: TVM first binds each loop to its start, and
    forgets to widen what it then knows about divisibility."""
    match node.kind:
        case "Const":
            return node.value, node.value
        case "Var":
            return 0, extents.get(node.name, 1) - 1
        case "FloorMod":
            rest = at_start(node)
            return rest, rest
    (a, b), (c, d) = (bounds(arg, extents) for arg in node.args)
    match node.kind:
        case "Add":
            return a + c, b + d
        case "Sub":
            return a - d, b - c
        case "Mul":
            ends = (a * c, a * d, b * c, b * d)
            return min(ends), max(ends)
        case "FloorDiv":
            return a // c, b // c
        case "Min":
            return min(a, c), min(b, d)
    return max(a, c), max(b, d)


def at_start(node: Written) -> int:
    """The value with all loops at 0."""
    if not node.args:
        return node.value
    a, b = (at_start(arg) for arg in node.args)
    match node.kind:
        case "Add":
            return a + b
        case "Sub":
            return a - b
        case "Mul":
            return a * b
        case "FloorDiv":
            return a // b
        case "FloorMod":
            return a % b
        case "Min":
            return min(a, b)
    return max(a, b)


def coefficient(node: Written, name: str) -> int:
    """What TVM takes for the coefficient of a variable: 0 where it does not occur.

    A walk, arguments first: once the variable is seen, each product with a number sets the coefficient anew; but where
    a sum is met before any such product, it is 1. Where the variable comes again after that, with no product or sum to
    follow that counts, it is 2. So of i·64 + j·4 the coefficient of i is 4, and of j too."""
    if name not in node.atoms:
        return 0
    walk = _Walk(name)
    walk.visit(node)
    return walk.coefficient


class _Walk:
    """The state of one walk: whether the variable is seen, and whether a sum or a product has settled the answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = self.summed = self.multiplied = False
        self._found = 1

    @property
    def coefficient(self) -> int:
        """The answer so far."""
        return self._found if self.summed or self.multiplied else 1

    def visit(self, node: Written) -> None:
        for arg in node.args:
            self.visit(arg)
        if node.kind == "Var":
            if node.name == self.name:
                self.seen, self._found = True, 2
        elif node.kind == "Mul" and self.seen and not self.summed:
            numbers = [arg.value for arg in node.args if arg.kind == "Const"]
            if numbers:
                self.multiplied, self._found = True, numbers[0]
        elif node.kind == "Add" and self.seen and not self.multiplied:
            self.summed, self._found = True, 1
