"""Map each postprocessor's name to its effect on a symbolic program.

Input: the postprocessors of a design space, a replay, and its program. Output: the program after them, and their
requirements as constraints. Sketches with a postprocessor that is not in the table have no symbolic program and are
tuned by sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from felixlike.errors import UnsupportedSketch
from felixlike.frontend.constants import packing_blocks
from felixlike.frontend.task import Task
from felixlike.spaces import FITS_REGISTERS, IN_ITS_FORM, KEEPS_TO_BOUNDS, ROUNDS_FACTORS
from felixlike.spaces.cpu import narrow_weights
from felixlike.symbolic.expr.expression import const
from felixlike.symbolic.program import Constraint, Program
from felixlike.symbolic.replay.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.replay.postprocessors.cooperative_fetch import cooperative_fetch
from felixlike.symbolic.replay.postprocessors.gpu_code import gpu_constraints
from felixlike.symbolic.replay.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll
from felixlike.symbolic.replay.postprocessors.rewrite_layout import packed_constants, rewrite_layout, with_item_bytes
from felixlike.symbolic.replay.postprocessors.thread_bounds import thread_bounds
from felixlike.symbolic.replay.postprocessors.tile_bounds import tile_bounds
from felixlike.symbolic.replay.state import ReplayState

Change: TypeAlias = "Callable[[Program, ReplayState, Task], Program]"
"""Return a changed program, for a program, its replay and its task."""
Refusal: TypeAlias = "Callable[[Program, ReplayState, Task], tuple[Constraint, ...]]"
"""Return constraints, for a program, its replay and its task."""


@dataclass(frozen=True, slots=True)
class Model:
    """Describe the effect of a postprocessor.

    None means no effect on features or on valid points.

    Attributes:
        loops: The change of loops, applied in the order of the postprocessors.
        buffers: The change of buffers, applied after their sizes are known.
        refuses: The constraints on points.
    """

    loops: Change | None = None
    buffers: Change | None = None
    refuses: Refusal | None = None


def modelled(program: Program, replay: ReplayState, task: Task, names: Sequence[str]) -> Program:
    """Return the program after the postprocessors of these names.

    Raises:
        UnsupportedSketch: If a postprocessor has no model.
    """
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UnsupportedSketch(f"unsupported postprocessor {unknown[0]}", where="postprocessors")
    models = [MODELS[name] for name in names]
    for model in models:
        program = program if model.loops is None else model.loops(program, replay, task)
    program = compact_allocation(program)
    for model in models:
        program = program if model.buffers is None else model.buffers(program, replay, task)
    return program


def refusals(program: Program, replay: ReplayState, task: Task, names: Sequence[str]) -> tuple[Constraint, ...]:
    """Return the constraints of the postprocessors of these names, for the program that they leave."""
    functions = [MODELS[name].refuses for name in names]
    return tuple(limit for refuses in functions if refuses is not None for limit in refuses(program, replay, task))


def _shared_copies(program: Program, replay: ReplayState, _: Task) -> Program:
    """Apply cooperative fetches."""
    return cooperative_fetch(program, {b: (len(f.loops), v) for b, (f, v) in replay.fetches.items()})


def _fused_loops(program: Program, replay: ReplayState, _: Task) -> Program:
    """Apply the root block's annotations from MetaSchedule's ParallelizeVectorizeUnroll."""
    if replay.kinds:  # the trace itself states its loops' kinds
        return program
    annotations = replay.schedule.get(replay.schedule.get_sblock("root")).annotations
    values = {str(key): int(value) for key, value in annotations.items() if str(key).startswith("meta_schedule.")}
    unroll = replay.unroll if replay.unroll is not None else const(values.get("meta_schedule.unroll_explicit", 0))
    limits = Limits(values.get("meta_schedule.parallel"), values.get("meta_schedule.vectorize"), unroll)
    return parallel_vectorize_unroll(program, limits)


def _packed_constants(program: Program, replay: ReplayState, task: Task) -> Program:
    """Apply the layout and the type of packed constants, and the type of the factors of pairs."""
    program = rewrite_layout(program, task.layout_free)
    if not narrow_weights.is_marked(replay.schedule):
        return _factors_of_pairs(program, replay, task)
    blocks = packing_blocks(replay.schedule.mod["main"].body)
    narrow = packed_constants(program, [str(b.writes[0].source.name) for b in blocks])
    return with_item_bytes(program, narrow, narrow_weights.ITEM_BYTES)


def _factors_of_pairs(program: Program, _: ReplayState, __: Task) -> Program:
    """Apply the type of the factors of pairs."""
    paired = [store for store, _ in program.stores() if store.word is not None and store.is_reduction]
    narrow = [a.buffer for store in paired for a in store.loads if a.buffer is not store.target.buffer]
    return with_item_bytes(program, narrow, narrow_weights.ITEM_BYTES)


def _limits_of_a_gpu(program: Program, replay: ReplayState, task: Task) -> tuple[Constraint, ...]:
    """Return the constraints of VerifyGPUCode."""
    lowest: dict[str, int] = {}
    for store, _ in program.stores():
        annotations = replay.schedule.get(replay.schedule.get_sblock(store.block)).annotations
        lowest[store.block] = int(annotations.get("meta_schedule.thread_extent_low_inclusive", 1))
    return gpu_constraints(program, task.target, lowest)


MODELS: dict[str, Model] = {
    "DisallowDynamicLoop": Model(),
    "RewriteCooperativeFetch": Model(loops=_shared_copies),
    "RewriteUnboundBlock": Model(),
    "RewriteParallelVectorizeUnroll": Model(loops=_fused_loops),
    "RewriteReductionBlock": Model(),  # `reduction_block` gives the position of initial stores
    "RewriteLayout": Model(buffers=_packed_constants),
    IN_ITS_FORM: Model(),  # on recurrent layers, which have no symbolic program
    ROUNDS_FACTORS: Model(buffers=_factors_of_pairs),
    "VerifyGPUCode": Model(refuses=_limits_of_a_gpu),
    KEEPS_TO_BOUNDS: Model(refuses=lambda program, replay, _: tile_bounds(replay, program)),
    FITS_REGISTERS: Model(refuses=lambda program, replay, _: thread_bounds(replay, program)),
}
"""The models by the names in `DesignSpace.postprocessors`."""
