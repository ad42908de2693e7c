"""Design spaces: the sketches that a search may choose from, as MetaSchedule's traces.

In: a task. Out: `DesignSpace`s: MetaSchedule's default one, and one of our own rules for the target's kind, if it has
any. Those are rules as MetaSchedule has them, so that their traces replay, are stored and exported as any other.
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
from felixlike.spaces.cpu.flat import flat
from felixlike.spaces.cpu.register_bounds import keeps_to_bounds
from felixlike.spaces.cpu.register_tile import register_tiles
from felixlike.spaces.cpu.rows import row_by_row
from felixlike.spaces.cpu.tile_cases import case_by_case
from felixlike.spaces.cpu.transposed_copies import transposed_copies
from felixlike.spaces.gpu.flat_threads import flat_threads
from felixlike.spaces.gpu.row_threads import row_threads
from felixlike.spaces.gpu.thread_bounds import fits_registers
from felixlike.spaces.gpu.thread_tile import thread_tiles
from felixlike.spaces.stages import item_bits


@dataclass(frozen=True, slots=True)
class Postprocessor:
    """name: MetaSchedule's, or our own; there is a model for each (`symbolic/replay/postprocessors/model.py`).
    runner: MetaSchedule's object.  own: our function behind it; called directly, its errors do not look like TVM's."""

    name: str
    runner: Any
    own: Callable[[Any], bool] | None = None

    def apply(self, schedule: Schedule) -> bool:
        """Change a schedule; whether it is accepted."""
        return bool(self.runner.apply(schedule) if self.own is None else self.own(schedule))


@dataclass(frozen=True, slots=True)
class DesignSpace:
    """traces: of its sketches, with some decision each.  postprocessors: what schedules undergo afterwards."""

    traces: tuple[Any, ...]
    postprocessors: tuple[Postprocessor, ...]


KEEPS_TO_BOUNDS, FITS_REGISTERS = "KeepsToBounds", "FitsRegisters"
"""The names of our own postprocessors: of CPUs' tiles and of GPUs'."""


def default_space(task: Task) -> DesignSpace:
    """MetaSchedule's design space under the plain rules of the target's kind."""
    with metaschedule.no_rule_is_unknown(task.module, task.target):
        return _generated(metaschedule.tune_context(task.module, task.target))


def own_space(task: Task) -> DesignSpace:
    """What the first of our rules for the target's kind that applies makes of a task; no traces where none does."""
    device = target_device(task.target)
    for rule in RULES[kind_of(task.target).name]:
        wrapped = metaschedule.schedule_rule(partial(rule.apply, device=device))
        named = tuple(_postprocessor(name) for name in rule.postprocessors)
        own = metaschedule.generator([wrapped], [postprocessor.runner for postprocessor in named])
        found = _generated(metaschedule.tune_context(task.module, task.target, space=own))
        traces = tuple(trace for trace in found.traces if _schedules(trace))
        if traces:
            return DesignSpace(traces, named)
    return DesignSpace((), ())


def _postprocessor(name: str) -> Postprocessor:
    """What a name in the table of a rule stands for."""
    own = {
        KEEPS_TO_BOUNDS: keeps_to_bounds,
        FITS_REGISTERS: fits_registers,
        "RewriteLayout": _rewrite_layout,
    }.get(name)
    return Postprocessor(name, metaschedule.postprocessor(own), own) if own else _theirs(name)


def postprocessors(task: Task, names: Sequence[str], own: Sequence[bool]) -> tuple[Postprocessor, ...]:
    """Those of a design space, by their names, without the space.  own: which of them are functions of ours."""
    found = [_postprocessor(n) if ours else _theirs(n) for n, ours in zip(names, own, strict=True)]
    generator = metaschedule.generator([], [postprocessor.runner for postprocessor in found])
    metaschedule.tune_context(task.module, task.target, space=generator)  # tells them the target
    return tuple(found)


def _theirs(name: str) -> Postprocessor:
    return Postprocessor(name, getattr(_tvm.ms.postproc, name)())


def _rewrite_layout(schedule: Schedule) -> bool:
    """MetaSchedule's RewriteLayout, except where constants are packed already: it cannot lay those out again."""
    return bool(packing_blocks(schedule.mod["main"].body) or _tvm.ms.postproc.RewriteLayout().apply(schedule))


def _schedules(trace: Trace) -> bool:
    """Whether a trace does more than look blocks up."""
    return any(str(instruction.kind.name) != "GetSBlock" for instruction in trace.insts)


def _generated(context: Any) -> DesignSpace:
    traces = tuple(schedule.trace for schedule in context.generate_design_space())
    runners = context.space_generator.postprocs
    return DesignSpace(traces, tuple(Postprocessor(type(runner).__name__, runner) for runner in runners))


@dataclass(frozen=True, slots=True)
class Rule:
    """apply: (schedule, block, device) → schedules with the block and all around it done; none where it does not
    apply.  postprocessors: their names, in order."""

    name: str
    apply: Callable[..., list[Any]]
    postprocessors: tuple[str, ...]


def _whole(rule: Callable[[Any, int], list[Any]], postprocessors: tuple[str, ...] = ("DisallowDynamicLoop",)) -> Rule:
    """A rule that does a whole function at once: for its root block, the first that MetaSchedule asks for.  rule: takes
    the schedule and the elements of a vector."""

    def apply(schedule: Any, block: Any, device: Device) -> list[Any]:
        is_root = schedule.get_sref(block).parent is None
        return rule(schedule, device.unit.lanes(item_bits(schedule))) if is_root else []

    return Rule(rule.__name__, apply, postprocessors)


_CPU_RULES = (
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
    # It takes initial values out itself, and leaves in what stands under a test, where TVM refuses to.
    _whole(row_by_row),
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
"""Our rules for each kind of target, the first that applies wins."""
