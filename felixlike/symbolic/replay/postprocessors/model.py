"""What each postprocessor does to a symbolic program: a table from its name to its model.

In: the postprocessors of a design space, a replay, its program. Out: the program after them, and what they refuse, as
constraints. A postprocessor that is not in the table makes its sketches ones that are tuned by sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from felixlike.errors import UnsupportedSketch
from felixlike.frontend.task import Task
from felixlike.spaces import FITS_REGISTERS, KEEPS_TO_BOUNDS
from felixlike.symbolic.expr.expression import const
from felixlike.symbolic.program import Constraint, Program
from felixlike.symbolic.replay.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.replay.postprocessors.cooperative_fetch import cooperative_fetch
from felixlike.symbolic.replay.postprocessors.gpu_code import gpu_constraints
from felixlike.symbolic.replay.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll
from felixlike.symbolic.replay.postprocessors.rewrite_layout import rewrite_layout
from felixlike.symbolic.replay.postprocessors.thread_bounds import thread_bounds
from felixlike.symbolic.replay.postprocessors.tile_bounds import tile_bounds
from felixlike.symbolic.replay.state import ReplayState

Change: TypeAlias = "Callable[[Program, ReplayState, Task], Program]"
Refusal: TypeAlias = "Callable[[Program, ReplayState, Task], tuple[Constraint, ...]]"


@dataclass(frozen=True, slots=True)
class Model:
    """loops: what it does to loops, in the order of the postprocessors.  buffers: to buffers, once their sizes are
    known.  refuses: what it asks of a point.  None: nothing that features see, or that a valid point fails."""

    loops: Change | None = None
    buffers: Change | None = None
    refuses: Refusal | None = None


def modelled(program: Program, replay: ReplayState, task: Task, names: Sequence[str]) -> Program:
    """The program after the postprocessors of these names. Raises UnsupportedSketch for one without a model."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UnsupportedSketch(f"the postprocessor {unknown[0]} is not understood", where="postprocessors")
    models = [MODELS[name] for name in names]
    for model in models:
        program = program if model.loops is None else model.loops(program, replay, task)
    program = compact_allocation(program)
    for model in models:
        program = program if model.buffers is None else model.buffers(program, replay, task)
    return program


def refusals(program: Program, replay: ReplayState, task: Task, names: Sequence[str]) -> tuple[Constraint, ...]:
    """What the postprocessors of these names ask of a point, program being what they leave."""
    asked = [MODELS[name].refuses for name in names]
    return tuple(limit for refuses in asked if refuses is not None for limit in refuses(program, replay, task))


def _shared_copies(program: Program, replay: ReplayState, _: Task) -> Program:
    return cooperative_fetch(program, {b: (len(f.loops), v) for b, (f, v) in replay.fetches.items()})


def _fused_loops(program: Program, replay: ReplayState, _: Task) -> Program:
    """By the root block's notes, which MetaSchedule's ParallelizeVectorizeUnroll left there."""
    if replay.kinds:  # the trace itself says how its loops are run
        return program
    notes = replay.schedule.get(replay.schedule.get_sblock("root")).annotations
    limit = {str(key): int(value) for key, value in notes.items() if str(key).startswith("meta_schedule.")}
    unroll = replay.unroll if replay.unroll is not None else const(limit.get("meta_schedule.unroll_explicit", 0))
    limits = Limits(limit.get("meta_schedule.parallel"), limit.get("meta_schedule.vectorize"), unroll)
    return parallel_vectorize_unroll(program, limits)


def _limits_of_a_gpu(program: Program, replay: ReplayState, task: Task) -> tuple[Constraint, ...]:
    lowest: dict[str, int] = {}
    for store, _ in program.stores():
        notes = replay.schedule.get(replay.schedule.get_sblock(store.block)).annotations
        lowest[store.block] = int(notes.get("meta_schedule.thread_extent_low_inclusive", 1))
    return gpu_constraints(program, task.target, lowest)


MODELS: dict[str, Model] = {
    "DisallowDynamicLoop": Model(),
    "RewriteCooperativeFetch": Model(loops=_shared_copies),
    "RewriteUnboundBlock": Model(),
    "RewriteParallelVectorizeUnroll": Model(loops=_fused_loops),
    "RewriteReductionBlock": Model(),  # where initial stores stand is asked of `reduction_block`
    "RewriteLayout": Model(buffers=lambda program, _, task: rewrite_layout(program, task.layout_free)),
    "VerifyGPUCode": Model(refuses=_limits_of_a_gpu),
    KEEPS_TO_BOUNDS: Model(refuses=lambda program, replay, _: tile_bounds(replay, program)),
    FITS_REGISTERS: Model(refuses=lambda program, replay, _: thread_bounds(replay, program)),
}
"""By the names in `DesignSpace.postprocessors`."""
