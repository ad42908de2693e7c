"""Limits of a device, smooth: by what factor a relaxed point exceeds each of them.

A constraint  formula ≤ 0  is written  P ≤ N  with the positive and the negative terms of the formula, so that both
sides have logarithms:

    g(x') = log(1 + P) − log(1 + N)

is ≤ 0 wherever the constraint holds, and counts a thousand bytes too much of a thousand as one thread too much of one
(Felix §3.4 has the penalty λ Σ max(g, 0)², which descent applies to it).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from felixlike.smooth.graph import SmoothGraph
from felixlike.smooth.lower import Lowered
from felixlike.symbolic.expr.expression import Expr, add, const
from felixlike.symbolic.expr.node import Op
from felixlike.symbolic.program.constraints import Constraint


class Excess(nn.Module):
    """float[n, variables] → float[n, limits]: g(x') for each limit."""

    def __init__(self, graph: SmoothGraph, columns: Sequence[str]) -> None:
        super().__init__()
        self._lowered = Lowered(graph, columns).double()

    def forward(self, log_x: Tensor, width: float) -> Tensor:
        both: Tensor = self._lowered(log_x, width)
        return both[:, ::2] - both[:, 1::2]


def sides(constraints: Sequence[Constraint]) -> tuple[Expr, ...]:
    """P and N of each constraint, one after the other."""
    return tuple(side for constraint in constraints for side in _sides(constraint.formula))


def _sides(formula: Expr) -> tuple[Expr, Expr]:
    if formula.op is not Op.ADD:
        return formula, const(0)
    total, *coefficients = formula.payload
    terms = [(const(1), total), *zip(formula.args, coefficients, strict=True)]
    greater = add(term * c for term, c in terms if c > 0)  # type: ignore[operator]
    less = add(term * -c for term, c in terms if c < 0)  # type: ignore[operator]
    return greater, less
