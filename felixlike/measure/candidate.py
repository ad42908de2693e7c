"""What can be measured: anything that turns itself into a scheduled module when asked."""

from dataclasses import dataclass
from typing import Any, Protocol

from felixlike.frontend.task import Task


class Schedulable(Protocol):
    """A candidate of a task."""

    def module(self) -> Any:
        """The scheduled IRModule {"main": PrimFunc}, with the task's buffers.

        Raises InvalidSchedule if TVM refuses it."""
        ...


@dataclass(frozen=True, slots=True)
class Untuned:
    """The task as it is: a candidate without any schedule, or with TVM's default one where plain loops cannot run."""

    task: Task

    def module(self) -> Any:
        """The task's own module, bound to threads for a GPU."""
        from felixlike import tvmlib

        return tvmlib.default_schedules(self.task.module, self.task.target)
