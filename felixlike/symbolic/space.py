"""All sketches of a task: MetaSchedule's design space under the plain rules of the target's kind."""

from __future__ import annotations

from typing import Any

from felixlike import tvmlib
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic.sketch import Sketch


def sketches(task: Task | Any, target: Any = "cpu") -> tuple[Sketch, ...]:
    """The sketches of a task, or of a PrimFunc with static shapes on a target (a name or a TVM target).

    Raises UnknownTarget; a sketch that is not understood symbolically is among them, with its reason."""
    if not isinstance(task, Task):
        task = make_task(task, resolve_target(target), name="main")
    context = tvmlib.tune_context(task.module, task.target)
    spaces = context.generate_design_space()
    postprocessors = tuple(context.space_generator.postprocs)
    return tuple(Sketch(task, schedule.trace, postprocessors, index) for index, schedule in enumerate(spaces))
