"""Make the report of a run.

Inputs: the run's configuration, session and build. Output: `Report`. Parts of a report that fail are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, TypeVar

from felixlike._util.interrupts import Interrupts
from felixlike._util.spent import Spent
from felixlike._version import __version__
from felixlike.errors import first_line
from felixlike.frontend import Imported
from felixlike.frontend.constants import has_half_weights
from felixlike.hardware import FLOAT32, precision_of
from felixlike.hardware.probe import usable_cores
from felixlike.report import Report, TaskReport
from felixlike.report.activity import Activity
from felixlike.report.task_history import TaskHistory, task_history_of
from felixlike.runtime import Verdict, Verification
from felixlike.search import seconds_to_save
from felixlike.symbolic.program.tree import loop_tree
from felixlike.tuning.budget import Budget
from felixlike.tuning.choice import Choice
from felixlike.tuning.compiling import Build
from felixlike.tuning.config import RunConfig
from felixlike.tuning.session import Session
from felixlike.tuning.state import TaskState
from felixlike.tuning.timing import CallTimes

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Searched:
    """The end of a search.

    Attributes:
        devices: Names of the measuring devices, separated by commas.
        seconds: Seconds from the start of the run to the end of the search.
        failure: Why the search failed; empty if it did not.
    """

    devices: str
    seconds: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Reporter:
    """Make reports of one run.

    Attributes:
        config: The run's options.
        imported: The model.
        session: The tuning session.
        budget: The limits and what was spent.
        searched: The end of the search.
        build: The compiled model.
        interrupts: The run's handling of Ctrl-C.
        note: Called with a description of each part that failed.
    """

    config: RunConfig
    imported: Imported
    session: Session
    budget: Budget
    searched: Searched
    build: Build
    interrupts: Interrupts
    note: Callable[[str], None]

    def report(self, verification: Verification, times: CallTimes | None = None) -> Report:
        """Return the report; without its tasks if these fail."""
        bare = self._bare(verification, times or CallTimes())
        return self._attempt(lambda: replace(bare, tasks=self.tasks(), stopped=self._why_stopped()), bare)

    def _bare(self, verification: Verification, times: CallTimes) -> Report:
        """Return the report without its tasks."""
        return Report(
            model=self.imported.name,
            tasks=(),
            trials=self.budget.new_trials,
            rounds=self.budget.spent_rounds - self.budget.found_rounds,
            seconds=self.searched.seconds,
            total_seconds=time.monotonic() - self.config.started,
            **verification_fields(verification),
            stopped="",
            device=self.searched.devices,
            target=str(self.imported.target),
            versions=versions(),
            seed=self.config.seed,
            recalled=self.budget.found_trials,
            precision=precision_of(self.imported.target).name,
            note=" ".join(filter(None, (self.imported.note, verification_note(verification), times.words))),
            another_percent=self._another_percent(),
            **spent_fields(self.session.spent),
            **call_fields(times),
        )

    def _another_percent(self) -> float:
        """Return the seconds after which another percent is expected; -1 for never, nan if nothing was measured."""
        if not self.budget.new_trials:
            return math.nan
        seconds = seconds_to_save(0.01, self.session.progress, self.searched.seconds / self.budget.new_trials)
        return seconds if math.isfinite(seconds) else -1.0

    def tasks(self) -> tuple[TaskReport, ...]:
        """Return the reports of all tasks."""
        build = self.build
        reports = map(self._task, self.session.states, build.choices, build.modules)
        spent = self.session.spent.tasks
        return tuple(replace(report, spent=_rounded(spent.get(report.workload, {}))) for report in reports)

    def _task(self, state: TaskState, choice: Choice, module: Any | None) -> TaskReport:
        """Return the report of one task."""
        bare = _bare_task(state, choice)
        if self.interrupts.hurried and choice.candidate is None:  # its sketches may not exist yet
            return bare
        described = self._attempt(lambda: task_report(state, choice), bare)
        return self._attempt(lambda: replace(described, story=_history(state, module)), described)

    def _why_stopped(self) -> str:
        """Return the reason why the search ended."""
        budget = self.budget
        if self.searched.failure:
            return self.searched.failure
        if self.session.interrupted:
            return "interrupted"
        if self.session.settled:
            return f"the latest two rounds of every task saved less than {budget.least_gain:.1%} of a call"
        if budget.rounds is not None and budget.spent_rounds >= budget.rounds:
            return "the rounds were used up"
        if budget.trials is not None and budget.spent_trials >= budget.trials:
            return "the trials were used up"
        is_exhausted = all(task.exhausted for task in self.session.progress)
        # The search ends before the limit, to leave time for what follows it.
        if budget.seconds_left() <= 0 or (budget.seconds is not None and not is_exhausted):
            return "the time was used up"
        return "nothing was left to try"

    def _attempt(self, part: Callable[[], _T], otherwise: _T) -> _T:
        """Return a part of the report; if it fails, note that and return `otherwise`."""
        try:
            return part()
        except KeyboardInterrupt as error:
            self.interrupts.give_way(error)
        except Exception as error:
            self.note(f"the report failed: {first_line(error)}")
        return otherwise


def spent_fields(spent: Spent) -> dict[str, Any]:
    """Return the report's fields on what a run's seconds were spent on, until now."""
    spent.update()
    return {"spent": _rounded(spent.seconds), "activity": Activity.of(spent, usable_cores())}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of steps to a millisecond, without those that took less."""
    return {step: round(taken, 3) for step, taken in seconds.items() if taken >= 5e-4}


def call_fields(times: CallTimes) -> dict[str, Any]:
    """Return the report's fields on whole calls."""
    fields: dict[str, float] = {}
    for name, timed in (("latency", times.tuned), ("eager", times.eager)):
        if timed is not None:
            fields |= {name: timed.seconds, f"{name}_low": timed.low, f"{name}_high": timed.high}
    return fields


def verification_fields(verification: Verification) -> dict[str, Any]:
    """Return the report's fields on the comparison with the original."""
    return {name: getattr(verification, name) for name in ("error", "reference", "changed", "rows")}


def verification_note(verification: Verification) -> str:
    """Return the report's remark on a verification that did not succeed; empty if it did."""
    if verification.verdict is Verdict.RIGHT:
        return ""
    summary = "It is wrong" if verification.verdict is Verdict.WRONG else "The whole model was not verified"
    return f"{summary}: {verification.words}."


def versions() -> dict[str, str]:
    """Return the versions of the libraries that results depend on."""
    packages = ("apache-tvm", "apache-tvm-ffi", "torch", "egglog")
    return {"felixlike": __version__, **{name: metadata.version(name) for name in packages}}


def _history(state: TaskState, module: Any | None) -> TaskHistory:
    """Return the measurements of a task and its loops before and after tuning."""
    return task_history_of(
        state.history,
        chosen=() if module is None else loop_tree(module["main"].body),
        untuned=loop_tree(state.task.module["main"].body),
    )


def task_report(state: TaskState, choice: Choice) -> TaskReport:
    """Return the report of a task with its sketches and its point."""
    candidate = choice.candidate
    names = [v.name for v in candidate.sketch.variables] if candidate else []
    cached = state.kept if candidate and state.kept and candidate is state.kept.candidate else None
    return replace(
        _bare_task(state, choice),
        sketch=candidate.sketch.index if candidate else None,
        sketches=cached.sketches if cached else len(state.space.sketches),
        point=dict(zip(names, candidate.point, strict=True)) if candidate else {},
        sampled=cached.sampled if cached else state.sampled,
    )


def _rounding(state: TaskState, choice: Choice) -> tuple[str, str]:
    """Return the precision of a task's products, and what is rounded to it."""
    sketch = choice.candidate.sketch if choice.candidate else None
    requested = precision_of(state.task.target)
    if sketch is not None and sketch.precision != FLOAT32.name:
        return sketch.precision, sketch.rounded
    if requested.is_reduced and has_half_weights(state.task.module["main"]):
        return requested.name, "factors"  # by a rewrite
    return FLOAT32.name, ""


def _bare_task(state: TaskState, choice: Choice) -> TaskReport:
    """Return the part of a task's report that does not need its sketches."""
    precision, rounded = _rounding(state, choice)
    return TaskReport(
        name=state.task.name,
        workload=state.task.key,
        weight=state.task.weight,
        flops=state.task.flops,
        how=choice.how.value,
        sketch=None,
        sketches=0,
        seconds=choice.seconds,
        trials=state.trials,
        failures=dict(state.failures),
        recalled=state.recalled,
        recalled_failures=state.recalled_failures,
        error=choice.error,
        point={},
        sampled={},
        predicted=state.history.predicted(),
        layers=state.task.layers,
        precision=precision,
        rounded=rounded,
        note="; ".join(filter(None, (choice.note, *(f"a mistake in felixlike: {fault}" for fault in state.faults)))),
    )
