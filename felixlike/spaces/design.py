"""Generate design spaces: the sketches that a search chooses from, as MetaSchedule traces.

Input: a task. Output: a `DesignSpace`, MetaSchedule's default one or one from felixlike's rules for the target kind.
These rules are MetaSchedule schedule rules, so their traces replay, are stored and are exported like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Schedule, Trace
from felixlike.frontend.constants import packing_blocks
from felixlike.frontend.task import Task
from felixlike.hardware import Device, kind_of, target_device
from felixlike.spaces import metaschedule
from felixlike.spaces.cpu import bfloat16_pairs, narrow_weights
from felixlike.spaces.cpu.flat import flat
from felixlike.spaces.cpu.query_tiles import query_tiles
from felixlike.spaces.cpu.recurrent_forms import in_its_form, recurrent_forms
from felixlike.spaces.cpu.register_bounds import keeps_to_bounds
from felixlike.spaces.cpu.register_tile import register_tiles
from felixlike.spaces.cpu.rows import row_by_row
from felixlike.spaces.cpu.tile_cases import case_by_case
from felixlike.spaces.cpu.transformed_tiles import transformed_tiles
from felixlike.spaces.cpu.transposed_copies import transposed_copies
from felixlike.spaces.cpu.window_tile import window_tiles
from felixlike.spaces.gpu.flat_threads import flat_threads
from felixlike.spaces.gpu.row_threads import row_threads
from felixlike.spaces.gpu.thread_bounds import fits_registers
from felixlike.spaces.gpu.thread_tile import thread_tiles
from felixlike.spaces.stages import item_bits


@dataclass(frozen=True, slots=True)
class Postprocessor:
    """A transformation or check that is applied to a schedule after its trace.

    Attributes:
        name: MetaSchedule's name, or felixlike's. Each has a model in `symbolic/replay/postprocessors/model.py`.
        runner: MetaSchedule's object.
        own: The Python function behind `runner`, None for MetaSchedule's own. Errors of a direct call do not look like
            TVM's.
    """

    name: str
    runner: Any
    own: Callable[[Any], bool] | None = None

    def apply(self, schedule: Schedule) -> bool:
        """Transform `schedule` in place and return whether it is accepted."""
        return bool(self.runner.apply(schedule) if self.own is None else self.own(schedule))


@dataclass(frozen=True, slots=True)
class DesignSpace:
    """The sketches of a task and the postprocessors of their schedules.

    Attributes:
        traces: One trace a sketch. Its decisions are arbitrary.
        postprocessors: Applied to every schedule, in this order.
    """

    traces: tuple[Any, ...]
    postprocessors: tuple[Postprocessor, ...]


KEEPS_TO_BOUNDS, FITS_REGISTERS = "KeepsToBounds", "FitsRegisters"
"""Names of felixlike's own postprocessors, for CPU tiles and for GPU tiles."""

IN_ITS_FORM, ROUNDS_FACTORS = "InItsForm", "RoundsFactors"
"""Names of those that round factors of recurrent layers, and the copies of factors that are multiplied in pairs."""


def default_space(task: Task) -> DesignSpace:
    """Generate MetaSchedule's design space, with the rules of the target kind that use no tensor intrinsics.

    Args:
        task: The task whose function is scheduled.

    Returns:
        The sketches and MetaSchedule's postprocessors.
    """
    with metaschedule.no_rule_is_unknown(task.module, task.target):
        return _generated(metaschedule.tune_context(task.module, task.target))


def own_space(task: Task) -> DesignSpace:
    """Generate the design space of the first felixlike rule for the target kind that applies to a task.

    Args:
        task: The task whose function is scheduled.

    Returns:
        The sketches and postprocessors of that rule. Both tuples are empty if no rule applies.
    """
    device = target_device(task.target)
    for rule in RULES[kind_of(task.target).name]:
        wrapped = metaschedule.schedule_rule(partial(rule.apply, device=device))
        named = tuple(_postprocessor(name, device) for name in rule.postprocessors)
        space_generator = metaschedule.generator([wrapped], [postprocessor.runner for postprocessor in named])
        space = _generated(metaschedule.tune_context(task.module, task.target, space=space_generator))
        traces = tuple(trace for trace in space.traces if _schedules(trace))
        if traces:
            return DesignSpace(traces, named)
    return DesignSpace((), ())


def _postprocessor(name: str, device: Device) -> Postprocessor:
    """Return the postprocessor that a name in a rule's table stands for, for a device."""
    functions: dict[str, Callable[[Any], bool]] = {
        KEEPS_TO_BOUNDS: keeps_to_bounds,
        FITS_REGISTERS: fits_registers,
        IN_ITS_FORM: partial(in_its_form, device=device),
        ROUNDS_FACTORS: bfloat16_pairs.rounded,
        "RewriteLayout": _rewrite_layout,
    }
    function = functions.get(name)
    return (
        Postprocessor(name, metaschedule.postprocessor(function), function)
        if function
        else _metaschedule_postprocessor(name)
    )


def postprocessors(task: Task, names: Sequence[str], own: Sequence[bool]) -> tuple[Postprocessor, ...]:
    """Create the postprocessors of a design space from their names, without generating the space.

    Args:
        task: The task that the postprocessors are initialized for.
        names: Names of the postprocessors.
        own: For each name, whether it is a function of felixlike.

    Returns:
        The postprocessors in the order of `names`.
    """
    device = target_device(task.target)
    created = [
        _postprocessor(n, device) if ours else _metaschedule_postprocessor(n)
        for n, ours in zip(names, own, strict=True)
    ]
    generator = metaschedule.generator([], [postprocessor.runner for postprocessor in created])
    metaschedule.tune_context(task.module, task.target, space=generator)  # initializes them with the target
    return tuple(created)


def _metaschedule_postprocessor(name: str) -> Postprocessor:
    """Return MetaSchedule's postprocessor of a name."""
    return Postprocessor(name, getattr(_tvm.ms.postproc, name)())


def _rewrite_layout(schedule: Schedule) -> bool:
    """Apply MetaSchedule's RewriteLayout unless constants are packed already, which RewriteLayout cannot transform
    again. Then change the type of packed constants where the schedule says so.
    """
    packed = packing_blocks(schedule.mod["main"].body) or _tvm.ms.postproc.RewriteLayout().apply(schedule)
    return bool(packed and narrow_weights.narrowed(schedule) and bfloat16_pairs.rounded(schedule))


def _schedules(trace: Trace) -> bool:
    """Return whether a trace has instructions other than GetSBlock."""
    return any(str(instruction.kind.name) != "GetSBlock" for instruction in trace.insts)


def _generated(context: Any) -> DesignSpace:
    """Run a context's space generator and return the traces with its postprocessors."""
    traces = tuple(schedule.trace for schedule in context.generate_design_space())
    runners = context.space_generator.postprocs
    return DesignSpace(traces, tuple(Postprocessor(type(runner).__name__, runner) for runner in runners))


@dataclass(frozen=True, slots=True)
class Rule:
    """A schedule rule and the postprocessors of its schedules.

    Attributes:
        name: The name of the rule's function.
        apply: (schedule, block, device) → schedules of the block and its surroundings, [] if the rule does not apply.
        postprocessors: Names of the postprocessors, in the order of application.
    """

    name: str
    apply: Callable[..., list[Any]]
    postprocessors: tuple[str, ...]


def _whole(rule: Callable[[Any, int], list[Any]], postprocessors: tuple[str, ...] = ("DisallowDynamicLoop",)) -> Rule:
    """Wrap a rule for whole functions that takes the schedule and the number of elements of a vector."""

    def apply(schedule: Any, device: Device) -> list[Any]:
        return rule(schedule, device.unit.lanes(item_bits(schedule)))

    return _on_root(rule.__name__, apply, postprocessors)


def _on_root(name: str, rule: Callable[[Any, Device], list[Any]], postprocessors: tuple[str, ...]) -> Rule:
    """Wrap a rule that takes the schedule of a whole function: it runs on the root block, which comes first."""

    def apply(schedule: Any, block: Any, device: Device) -> list[Any]:
        return rule(schedule, device) if schedule.get_sref(block).parent is None else []

    return Rule(name, apply, postprocessors)


_CPU_RULES = (
    Rule(recurrent_forms.__name__, recurrent_forms, (IN_ITS_FORM,)),
    Rule(
        query_tiles.__name__,
        query_tiles,
        ("DisallowDynamicLoop", "RewriteReductionBlock", KEEPS_TO_BOUNDS, ROUNDS_FACTORS),
    ),
    _on_root(
        transformed_tiles.__name__,
        transformed_tiles,
        ("DisallowDynamicLoop", "RewriteReductionBlock", KEEPS_TO_BOUNDS, "RewriteLayout"),
    ),
    Rule(
        register_tiles.__name__,
        register_tiles,
        (
            "DisallowDynamicLoop",
            "RewriteReductionBlock",
            KEEPS_TO_BOUNDS,
            "RewriteLayout",
        ),
    ),
    # The rule decomposes reductions itself, except under a predicate, where TVM cannot.
    _whole(row_by_row),
    _on_root(window_tiles.__name__, window_tiles, ("DisallowDynamicLoop", "RewriteReductionBlock", KEEPS_TO_BOUNDS)),
    _whole(case_by_case),
    _whole(transposed_copies),
    _whole(flat),
)

_GPU_RULES = (
    Rule(
        thread_tiles.__name__,
        thread_tiles,
        (
            "DisallowDynamicLoop",
            "RewriteCooperativeFetch",
            "RewriteReductionBlock",
            FITS_REGISTERS,
            "VerifyGPUCode",
        ),
    ),
    _whole(row_threads, ("DisallowDynamicLoop", "RewriteReductionBlock", "VerifyGPUCode")),
    _whole(flat_threads, ("DisallowDynamicLoop", "VerifyGPUCode")),
)

RULES: dict[str, tuple[Rule, ...]] = {"llvm": _CPU_RULES, "cuda": _GPU_RULES}
"""felixlike's rules for each target kind. The first that applies wins."""
