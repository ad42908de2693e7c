"""Design spaces: the sketches that a search may choose from, as MetaSchedule's traces.

In: a task. Out: `DesignSpace`s: MetaSchedule's default one, and, on CPUs, one of our own rules. Those are rules as
MetaSchedule has them, so that their traces replay, are stored and exported as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import tvmlib
from felixlike.frontend.constants import packing_blocks
from felixlike.frontend.task import Task
from felixlike.hardware import target_device
from felixlike.hardware.vectors import Machine
from felixlike.spaces import metaschedule
from felixlike.spaces.bounds import keeps_to_bounds
from felixlike.spaces.cases import case_by_case
from felixlike.spaces.flat import flat
from felixlike.spaces.register_tile import register_tiles
from felixlike.spaces.rows import row_by_row
from felixlike.spaces.transposed_copies import transposed_copies
from felixlike.tvmlib.typing import BlockRef, Schedule, Trace


@dataclass(frozen=True, slots=True)
class Postprocessor:
    """name: MetaSchedule's, or our own; there is a model for each (`symbolic/replay/postprocessors/model.py`).
    runner: MetaSchedule's object."""

    name: str
    runner: Any

    def apply(self, schedule: Schedule) -> bool:
        """Change a schedule; whether it is accepted."""
        return bool(self.runner.apply(schedule))


@dataclass(frozen=True, slots=True)
class DesignSpace:
    """traces: of its sketches, with some decision each.  postprocessors: what schedules undergo afterwards."""

    traces: tuple[Any, ...]
    postprocessors: tuple[Postprocessor, ...]


KEEPS_TO_BOUNDS = "KeepsToBounds"
"""The name of our own postprocessor."""


def default_space(task: Task) -> DesignSpace:
    """MetaSchedule's design space under the plain rules of the target's kind."""
    with metaschedule.no_rule_is_unknown(task.module, task.target):
        return _generated(metaschedule.tune_context(task.module, task.target))


def own_space(task: Task) -> DesignSpace:
    """What the first of our rules that applies makes of a task; without traces where none does, and on GPUs."""
    if task.target.kind.name == "llvm":
        device = target_device(task.target)
        machine = Machine(device.unit, device.cores)
        for rule in RULES:
            wrapped = metaschedule.schedule_rule(partial(rule.apply, machine=machine))
            named = tuple(Postprocessor(name, _runner(name)) for name in rule.postprocessors)
            own = metaschedule.generator([wrapped], [postprocessor.runner for postprocessor in named])
            found = _generated(metaschedule.tune_context(task.module, task.target, space=own))
            traces = tuple(trace for trace in found.traces if _schedules(trace))
            if traces:
                return DesignSpace(traces, named)
    return DesignSpace((), ())


def _runner(name: str) -> Any:
    """What MetaSchedule runs for a name in the table of a rule."""
    own = {KEEPS_TO_BOUNDS: keeps_to_bounds, "RewriteLayout": _rewrite_layout}
    return metaschedule.postprocessor(own[name]) if name in own else getattr(tvmlib.ms.postproc, name)()


def _rewrite_layout(schedule: Schedule) -> bool:
    """MetaSchedule's RewriteLayout, except where constants are packed already: it cannot lay those out again."""
    return bool(packing_blocks(schedule.mod["main"].body) or tvmlib.ms.postproc.RewriteLayout().apply(schedule))


def _schedules(trace: Trace) -> bool:
    """Whether a trace does more than look blocks up."""
    return any(str(instruction.kind.name) != "GetSBlock" for instruction in trace.insts)


def _generated(context: Any) -> DesignSpace:
    traces = tuple(schedule.trace for schedule in context.generate_design_space())
    runners = context.space_generator.postprocs
    return DesignSpace(traces, tuple(Postprocessor(type(runner).__name__, runner) for runner in runners))


def _whole(rule: Callable[[Any, int], list[Any]], schedule: Schedule, block: BlockRef, machine: Machine) -> list[Any]:
    """A rule that does a whole function at once: for its root block, the first that MetaSchedule asks for."""
    is_root = schedule.get_sref(block).parent is None
    return rule(schedule, machine.unit.lanes(_BITS)) if is_root else []


_BITS = 32
"""Of the elements by which such rules count the lanes of a vector: float32, whatever the function computes in."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """apply: (schedule, block, machine) → schedules with the block and all around it done; none where it does not
    apply.  postprocessors: their names, in order."""

    apply: Callable[..., list[Any]]
    postprocessors: tuple[str, ...]


RULES = (
    _Rule(
        register_tiles,
        (
            "DisallowDynamicLoop",
            "RewriteReductionBlock",
            KEEPS_TO_BOUNDS,
            "RewriteLayout",
        ),
    ),
    # It takes initial values out itself, and leaves in what stands under a test, where TVM refuses to.
    _Rule(partial(_whole, row_by_row), ("DisallowDynamicLoop",)),
    _Rule(partial(_whole, case_by_case), ("DisallowDynamicLoop",)),
    _Rule(partial(_whole, transposed_copies), ("DisallowDynamicLoop",)),
    _Rule(partial(_whole, flat), ("DisallowDynamicLoop",)),
)
"""Our rules, the first that applies wins."""
