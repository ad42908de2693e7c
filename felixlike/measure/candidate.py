"""Define the candidates that a pool measures: objects whose `module()` returns a scheduled IRModule."""

from dataclasses import dataclass
from typing import Any, Protocol

from felixlike import codegen
from felixlike._util import option_checks
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidOption
from felixlike.frontend.task import Task


class Schedulable(Protocol):
    """Protocol of a task's candidate."""

    def module(self) -> Any:
        """Return the scheduled module.

        Returns:
            An IRModule {"main": PrimFunc} with the task's buffers.

        Raises:
            InvalidSchedule: TVM rejects the schedule.
        """
        ...


def schedulable(candidate: Any) -> Schedulable:
    """Return the candidate; raise InvalidOption if it has no callable `module`."""
    if callable(getattr(candidate, "module", None)):
        return candidate  # type: ignore[no-any-return]
    raise InvalidOption(
        f"expected a candidate, got {kind_of(candidate)}",
        where="measure",
        remedy="pass a search.Candidate(sketch, point), a measure.Untuned(task), or an object with a method module()",
    )


@dataclass(frozen=True, slots=True)
class Untuned:
    """Candidate without a schedule; on GPUs, where plain loops cannot run, it has TVM's default schedule.

    Attributes:
        task: The task to be measured, one of `extract_tasks(model, shapes)`.
    """

    task: Task

    def __post_init__(self) -> None:
        option_checks.of_kind(
            self.task, Task, "task", where="Untuned", remedy="pass a task from extract_tasks(model, shapes)"
        )

    def module(self) -> Any:
        """Return the task's own module; for a GPU its loops are bound to threads."""
        return codegen.default_schedules(self.task.module, self.task.target)
