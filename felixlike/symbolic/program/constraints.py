"""Describe valid points by formulas with reasons.

Input: the variables of a sketch. Output: `Constraint`s; a point is valid if and only if each formula is ≤ 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from felixlike.symbolic.expr.expression import Expr, mul, var
from felixlike.symbolic.program.variables import Kind, Variable, groups


@dataclass(frozen=True, slots=True)
class Constraint:
    """Require formula ≤ 0.

    Attributes:
        formula: An expression of the variables.
        reason: The reason in words.
    """

    formula: Expr
    reason: str


def tile_constraints(variables: Sequence[Variable]) -> tuple[Constraint, ...]:
    """Return the constraints on factors: their product is the loop's extent, and the innermost fits a vector."""
    constraints: list[Constraint] = []
    for _, columns in groups(variables):
        members = [variables[c] for c in columns]
        if members[0].kind is not Kind.TILE or all(m.fixed for m in members):
            continue
        name = members[0].name.rpartition(".")[0]
        extent = members[0].extent
        # Without their group, since the product of grouped factors is the extent by definition.
        factors = [var(m.name, m.choices[0], m.choices[-1]) for m in members]
        product = mul(factors)
        reason = f"the factors of {name} must multiply to {extent}"
        constraints += [Constraint(product - extent, reason), Constraint(extent - product, reason)]
        largest = members[-1].choices[-1]
        if largest < extent:
            constraints.append(
                Constraint(
                    factors[-1] - largest,
                    f"the innermost factor of {name} must divide {extent} and be at most {largest}",
                )
            )
    return tuple(constraints)
