"""Compile a model with the schedules that were chosen for its tasks, and replace schedules that fail.

Inputs: a function that compiles the model with schedules, and a choice for each task. Output: `Build`. A schedule that
cannot be made or that breaks the compilation is replaced by the task's next best one, and at last by the unscheduled
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import runtime
from felixlike._util.interrupts import Interrupts
from felixlike.errors import first_line
from felixlike.runtime import Compiled
from felixlike.tuning.choice import ATTEMPTS, Choice, at_hand, untuned
from felixlike.tuning.state import TaskState

_NO_SCHEDULES = "the model could not be compiled with its schedules"


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled model and the schedules in it.

    Attributes:
        compiled: The model.
        choices: The choice of each task that is in the model, with remarks on those it replaces.
        modules: The scheduled module of each task; None where the function is unscheduled.
    """

    compiled: Compiled
    choices: tuple[Choice, ...]
    modules: tuple[Any | None, ...]


def compile_chosen(
    compiled: Callable[[Mapping[str, Any]], Compiled],
    states: Sequence[TaskState],
    choices: Sequence[Choice],
    *,
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> Build:
    """Compile a model with the chosen schedules; replace those that break it.

    Args:
        compiled: Compiles the model with scheduled modules by the tasks' keys.
        states: The state of each task.
        choices: The choice of each task.
        interrupts: The run's handling of Ctrl-C.
        note: Called with the description of each replacement.

    Returns:
        The compiled model and what it was compiled with.

    Raises:
        CompilationFailed: The model does not compile without schedules either.
    """

    def surely_compiled(schedules: Mapping[str, Any]) -> Compiled:
        try:
            return compiled(schedules)
        except KeyboardInterrupt as error:  # of a foreign signal handler; there is no result before this step
            interrupts.give_way(error)
            return compiled(schedules)

    tasks = [_Scheduled(state, choice, note) for state, choice in zip(states, choices, strict=True)]
    for task in tasks:
        task.schedule(interrupts)
    plain: Compiled | None = None
    for _ in range(ATTEMPTS.culprits):
        schedules = {task.state.task.key: task.module for task in tasks if task.module is not None}
        try:
            return _build(surely_compiled(schedules), tasks)
        except Exception as error:  # of TVM, or of one of felixlike's passes
            if not schedules:
                raise
            if plain is None:
                plain = surely_compiled({})  # raises if the model does not compile without schedules
            if interrupts.hurried:
                break
            key = runtime.culprit(schedules, surely_compiled)
            culprit = next(task for task in tasks if task.state.task.key == key)
            culprit.give_up(f"the model could not be compiled with its schedule ({first_line(error)})")
        culprit.schedule(interrupts)
    note(f"{_NO_SCHEDULES}, and was compiled without any")
    assert plain is not None
    return Build(plain, (untuned(_NO_SCHEDULES),) * len(tasks), (None,) * len(tasks))


class _Scheduled:
    """The current choice of one task, its scheduled module, and the choices that may replace it.

    Args:
        state: The task's state.
        choice: The first choice.
        note: Called with the description of each replacement.
    """

    def __init__(self, state: TaskState, choice: Choice, note: Callable[[str], None]) -> None:
        self.state, self.choice, self._note = state, choice, note
        self.module: Any | None = None
        self._given_up = 0
        tried = choice.candidate and choice.candidate.key
        self._others = (o for o in at_hand(state) if o.candidate is None or o.candidate.key != tried)

    def schedule(self, interrupts: Interrupts) -> None:
        """Make the scheduled module of the current choice, or of the next best one that can be made."""
        self.module = None
        while (candidate := self.choice.candidate) is not None:
            try:
                self.module = candidate.module()
                return
            except KeyboardInterrupt as error:
                interrupts.give_way(error)
            except Exception as error:
                self.give_up(f"its schedule could not be made ({first_line(error)})")

    def give_up(self, why: str) -> None:
        """Replace the choice by the next best one."""
        choice = next(self._others) if self._given_up < ATTEMPTS.others else untuned()
        self._given_up += 1
        self.choice = replace(choice, note="; ".join(filter(None, (self.choice.note, why))))
        self._note(f"{self.state.task.name}: {why}")


def _build(compiled: Compiled, tasks: Sequence[_Scheduled]) -> Build:
    """Return the compiled model with its tasks' choices and modules."""
    return Build(compiled, tuple(task.choice for task in tasks), tuple(task.module for task in tasks))
