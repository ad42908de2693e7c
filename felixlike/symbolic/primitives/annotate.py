"""Annotate, Unannotate: notes for later rules.

The root block's notes are the settings of the postprocessors (largest parallel and vector extents, unroll steps);
they are kept on the TVM block and read by `postprocessors`. The unroll step may be a variable, which TVM could not
store: it is kept aside. Other notes only steer rules that have already run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from felixlike.symbolic.expression import Expr
from felixlike.symbolic.primitives.primitive import Primitive

if TYPE_CHECKING:
    from felixlike.symbolic.replay import Replay


def _annotate(state: Replay, instruction: Any, _: int) -> None:
    key, (target, value) = str(instruction.attrs[0]), instruction.inputs
    value = state.get(value)
    if isinstance(value, Expr):
        state.unroll = value
        return
    state.schedule.annotate(state.get(target), key, value)


def _unannotate(state: Replay, instruction: Any, _: int) -> None:
    state.schedule.unannotate(state.get(instruction.inputs[0]), str(instruction.attrs[0]))


PRIMITIVES = {"Annotate": Primitive(_annotate), "Unannotate": Primitive(_unannotate)}
