"""Design spaces: the sketches that a search may choose from, as MetaSchedule's traces.

In: a task. Out: `DesignSpace`s: MetaSchedule's default one, and, on CPUs, one of our own rules. Those are rules as
MetaSchedule has them, so that their traces replay, are stored and exported as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from felixlike import tvmlib
from felixlike.frontend.task import Task
from felixlike.spaces.bounds import keeps_to_bounds
from felixlike.spaces.padding import packs_already
from felixlike.spaces.register_tile import register_tiles
from felixlike.spaces.rows import Rows
from felixlike.spaces.vectors import Machine, vector_unit


def _rows(schedule: Any, block: Any, machine: Machine) -> list[Any]:
    """`Rows`, which does a whole function at once, whichever block it is asked for first."""
    item = schedule.get(block).writes[0].source.dtype if schedule.get(block).writes else "float32"
    return Rows().apply(schedule, machine.unit.lanes(int(tvmlib.runtime.DataType(str(item)).bits)))


RULES: tuple[Callable[[Any, Any, Machine], list[Any]], ...] = (register_tiles, _rows)
"""(schedule, block, machine) → schedules with the block and all around it done; none where a rule does not apply."""


@dataclass(frozen=True, slots=True)
class DesignSpace:
    """traces: of its sketches, with some decision each.  postprocessors: MetaSchedule's, and ours."""

    traces: tuple[Any, ...]
    postprocessors: tuple[Any, ...]


def default_space(task: Task) -> DesignSpace:
    """MetaSchedule's design space under the plain rules of the target's kind."""
    context = tvmlib.tune_context(task.module, task.target)
    return _generated(context)


def own_space(task: Task) -> DesignSpace:
    """What our rules make of a task; without traces where none applies, and on GPUs."""
    if task.target.kind.name != "llvm":
        return DesignSpace((), ())
    machine = Machine(vector_unit(task.target), int(task.target.attrs["num-cores"]))
    rules = [tvmlib.schedule_rule(lambda schedule, block, rule=rule: rule(schedule, block, machine)) for rule in RULES]
    own = tvmlib.own_space(rules, [tvmlib.postprocessor(keeps_to_bounds), tvmlib.postprocessor(_rewrite_layout)])
    found = _generated(tvmlib.tune_context(task.module, task.target, space=own))
    return DesignSpace(tuple(trace for trace in found.traces if _schedules(trace)), found.postprocessors)


def _rewrite_layout(schedule: Any) -> bool:
    """MetaSchedule's RewriteLayout, except where constants are packed already: it cannot lay those out again."""
    return packs_already(schedule) or bool(tvmlib.ms.postproc.RewriteLayout().apply(schedule))


def _schedules(trace: Any) -> bool:
    """Whether a trace does more than look blocks up."""
    return any(str(instruction.kind.name) != "GetSBlock" for instruction in trace.insts)


def _generated(context: Any) -> DesignSpace:
    traces = tuple(schedule.trace for schedule in context.generate_design_space())
    return DesignSpace(traces, tuple(context.space_generator.postprocs))
