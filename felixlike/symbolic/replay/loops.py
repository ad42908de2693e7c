"""What a loop of a trace stands for during a replay, where it is not one loop of TVM's.

On GPUs loops are fused and split in name only: TVM's loops stay as they are, so that indices stay affine. In: TVM's
loops. Out: `FusedLoops`, several that count as one; `Part`, one of those that a split makes of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.symbolic.expr.expression import Expr


@dataclass(frozen=True, slots=True)
class FusedLoops:
    """Neighbouring loops that the trace fuses and we only remember as one, since a fused index is not affine.

    variables: TVM's loop variables, outermost first."""

    loops: tuple[Any, ...]
    variables: tuple[Any, ...]


class Part:
    """One of the loops that a split by factors that need not divide makes of others.

    share: all parts of that split, in their present order.  loops, variables: TVM's, of those that are split.
    extent: iterations.  place: its position in the split.  kind: "serial" or the thread it is bound to."""

    def __init__(self, share: list[Part], members: FusedLoops, extent: Expr, place: int) -> None:
        self.place = place
        self.share, self.loops, self.variables, self.extent = share, members.loops, members.variables, extent
        self.kind = "serial"


def members(loop: Any) -> tuple[Any, ...]:
    """TVM's loops that a loop of a trace stands for, outermost first; one of TVM's own, or a block, for itself."""
    return loop.loops if isinstance(loop, FusedLoops | Part) else (loop,)
