"""Compute smoothly by what factor a relaxed point exceeds each limit of a device.

A constraint  formula ≤ 0  is written  P ≤ N  with the positive and the negative terms of the formula, so that both
sides have logarithms:

    g(x') = log(1 + P) − log(1 + N)

g is ≤ 0 wherever the constraint holds. It is relative: 1,000 bytes over a limit of 1,000 count as much as one thread
over a limit of one. Descent applies the penalty λ Σ max(g, 0)² of Felix §3.4 to it.
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
    """Map float[n, variables] to float[n, limits]: g(x') for each limit."""

    def __init__(self, graph: SmoothGraph, columns: Sequence[str]) -> None:
        super().__init__()
        self._lowered = Lowered(graph, columns).double()

    def forward(self, log_x: Tensor, width: float) -> Tensor:
        """Return g(x') for each limit: float64[n, limits]."""
        both: Tensor = self._lowered(log_x, width)
        return both[:, ::2] - both[:, 1::2]


def sides(constraints: Sequence[Constraint]) -> tuple[Expr, ...]:
    """Return P and N of each constraint, one after the other."""
    return tuple(side for constraint in constraints for side in _sides(constraint.formula))


def _sides(formula: Expr) -> tuple[Expr, Expr]:
    """Return the positive and the negative terms of a formula, both as positive sums."""
    if formula.op is not Op.ADD:
        return formula, const(0)
    total, *coefficients = formula.payload
    terms = [(const(1), total), *zip(formula.args, coefficients, strict=True)]
    positive = add(term * c for term, c in terms if c > 0)  # type: ignore[operator]
    negative = add(term * -c for term, c in terms if c < 0)  # type: ignore[operator]
    return positive, negative
