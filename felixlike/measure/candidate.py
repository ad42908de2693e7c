"""What can be measured: anything that turns itself into a scheduled module when asked."""

from dataclasses import dataclass
from typing import Any, Protocol

from felixlike import codegen
from felixlike._util import option_checks
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidOption
from felixlike.frontend.task import Task


class Schedulable(Protocol):
    """A candidate of a task."""

    def module(self) -> Any:
        """The scheduled IRModule {"main": PrimFunc}, with the task's buffers.

        Raises InvalidSchedule if TVM refuses it."""
        ...


def schedulable(candidate: Any) -> Schedulable:
    """The candidate, if it is one. Raises InvalidOption."""
    if callable(getattr(candidate, "module", None)):
        return candidate  # type: ignore[no-any-return]
    raise InvalidOption(
        f"{kind_of(candidate)} is no candidate",
        where="measure",
        remedy="give search.Candidate(sketch, point), measure.Untuned(task), or anything with a method module()",
    )


@dataclass(frozen=True, slots=True)
class Untuned:
    """The task as it is: a candidate without any schedule, or with TVM's default one where plain loops cannot run."""

    task: Task

    def __post_init__(self) -> None:
        option_checks.of_kind(
            self.task, Task, "task", where="Untuned", remedy="give one of extract_tasks(model, shapes)"
        )

    def module(self) -> Any:
        """The task's own module, bound to threads for a GPU."""
        return codegen.default_schedules(self.task.module, self.task.target)
