"""Represent a trace's loops that are not single TVM loops during a replay.

On GPUs, fusions and splits are only recorded: TVM's loops stay unchanged, so that indices stay affine. Input: TVM's
loops. Output: `FusedLoops`, several that count as one, and `Part`, one of those that a recorded split creates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.symbolic.expr.expression import Expr


@dataclass(frozen=True, slots=True)
class FusedLoops:
    """Represent neighbouring loops that the trace fuses; only recorded, since a fused index is not affine.

    Attributes:
        loops: TVM's loops, outermost first.
        variables: TVM's loop variables, outermost first.
    """

    loops: tuple[Any, ...]
    variables: tuple[Any, ...]


class Part:
    """Represent one of the loops that a split creates whose factors need not divide the extent.

    Attributes:
        share: All parts of the split, in their present order.
        loops: TVM's loops that are split.
        variables: Their variables.
        extent: The number of iterations.
        place: The position in the split.
        kind: "serial", or the thread that the loop is bound to.
    """

    def __init__(self, share: list[Part], members: FusedLoops, extent: Expr, place: int) -> None:
        self.place = place
        self.share, self.loops, self.variables, self.extent = share, members.loops, members.variables, extent
        self.kind = "serial"


def members(loop: Any) -> tuple[Any, ...]:
    """Return TVM's loops of a loop of a trace, outermost first; a TVM loop, or a block, is returned alone."""
    return loop.loops if isinstance(loop, FusedLoops | Part) else (loop,)
