"""Replay Annotate and Unannotate: annotations for later rules.

The root block's annotations are the settings of the postprocessors (largest parallel and vector extents, unroll steps).
They are stored on the TVM block and read by `postprocessors`. The unroll step may be a variable, which TVM could not
store, so it is stored in the state. So are the annotations of cooperative fetches and software pipelines, for the
postprocessors of GPUs. Other annotations only affect rules that have already run.
"""

from __future__ import annotations

from collections.abc import Sequence

from felixlike._tvm.typing import Instruction
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.replay.loops import members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _annotate(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Annotate."""
    key, (target, value) = str(instruction.attrs[0]), instruction.inputs
    value, target = state.get(value), state.get(target)
    match key:
        case "meta_schedule.unroll_explicit" if isinstance(value, Expr):
            state.unroll = value
        case "meta_schedule.cooperative_fetch":
            vector = value if isinstance(value, Expr) else const(int(value))
            state.fetches[str(state.schedule.get(target).name_hint)] = state.loops(target)[-1], vector
        case "software_pipeline_stage":
            state.stages = 1 + max(int(stage) for stage in value)
            state.pipeline = target.variables
        case "software_pipeline_order" | "software_pipeline_async_stages":
            pass
        case _ if isinstance(value, Sequence) and not isinstance(value, str):
            state.schedule.annotate(target, key, list(value))
        case _:
            state.schedule.annotate(members(target)[-1], key, value)


def _unannotate(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Unannotate."""
    state.schedule.unannotate(state.get(instruction.inputs[0]), str(instruction.attrs[0]))


PRIMITIVES = {"Annotate": Primitive(_annotate), "Unannotate": Primitive(_unannotate)}
