"""Finish a run after the search: choose schedules, compile the model, compare it with the original, report.

Inputs: an imported model and a session's states. Outputs: the compiled model and its report. A step that fails or is
interrupted falls back to the next best schedule, the unscheduled function, or a model that was not compared. The report
records each fallback. So does a warning at the end, which carries the model.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, TypeVar

from felixlike import runtime
from felixlike._util import user_folders
from felixlike._util.interrupts import Interrupts
from felixlike._version import __version__
from felixlike.costmodel import CostModel
from felixlike.errors import (
    FallbackWarning,
    FelixlikeWarning,
    InternalErrorWarning,
    NondeterministicModelWarning,
    SearchFailedWarning,
    UnverifiedWarning,
    VerificationFailed,
    callers_level,
    first_line,
)
from felixlike.frontend import Imported
from felixlike.frontend.imported import warnings_of
from felixlike.hardware import FLOAT32, precision_of
from felixlike.measure import Pool
from felixlike.report import Report, RunLog, TaskReport
from felixlike.report.task_history import TaskHistory, task_history_of
from felixlike.runtime import Compiled, Verdict, Verification
from felixlike.symbolic.program.tree import loop_tree
from felixlike.tuning import Budget, Choice, How, Predictions, Session, TaskState, at_hand, check_ahead, choose_safely

_T = TypeVar("_T")

_CHOOSING = 2.5
"""Seconds after the budget during which schedules may be chosen, so that a run ends 5 s after its budget: compiling and
comparing a model take 1 to 2 s. Builds that do not end are aborted by then."""

_LEAST = 2.5
"""Minimum time limit in seconds for a check's build, and for its run: five times what nearly all take when idle."""

_OTHERS = 2
"""Maximum number of next best schedules to try before a task's function is compiled unscheduled. Chosen by hand."""

_CULPRITS = 8
"""Maximum number of schedules to replace because they break compilation; then none is used. Chosen by hand."""

_NOT_YET = "it was saved before it was compared"

_HASTE = "the run was interrupted before that"


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a run that a report contains regardless of the result.

    Attributes:
        device: Names of the measuring devices.
        seed: The run's seed.
        started: Start of the run, by `time.monotonic`.
        tuned: Seconds until the end of the search.
    """

    device: str
    seed: int
    started: float
    tuned: float


before_comparing: ContextVar[Callable[[Compiled, Report], None] | None] = ContextVar("before_comparing", default=None)
"""Context variable with a callback that gets a compiled model and its report before the comparison with the original,
which may run out of memory. The command-line tool sets it to save the model."""


def hand_over(compiled: Compiled, report: Report) -> None:
    """Call `before_comparing`. Its exceptions are ignored, since the final save raises them again."""
    keep = before_comparing.get()
    if keep is not None:
        with contextlib.suppress(Exception):
            keep(compiled, replace(report, note=f"The whole model was not verified: {_NOT_YET}."))


@contextlib.contextmanager
def closing(resource: AbstractContextManager[_T], problems: list[str]) -> Iterator[_T]:
    """Enter a context manager; after a successful block, append errors of its exit to `problems` instead of raising."""
    opened = resource.__enter__()
    try:
        yield opened
    except BaseException:
        if not resource.__exit__(*sys.exc_info()):
            raise
    else:
        try:
            resource.__exit__(None, None, None)
        except Exception as error:
            problems.append(f"closing the {type(resource).__name__} failed: {first_line(error)}")


class Finish:
    """The steps that end a run, in order: `search`, `choose`, `compile`, `verify`, `report`, `tell`.

    Args:
        imported: The model.
        session: The tuning session.
        budget: The run's limits.
        interrupts: The run's handling of Ctrl-C.
        problems: Descriptions of failures outside the search; appended to.
    """

    def __init__(
        self, imported: Imported, session: Session, budget: Budget, *, interrupts: Interrupts, problems: list[str]
    ) -> None:
        self._imported, self._session, self._budget, self._interrupts = imported, session, budget, interrupts
        self._states = session.states
        self._choices: list[Choice] = []
        self._others: list[Iterator[Choice]] = []
        self._given_up = [0] * len(session.states)
        self._scheduled: dict[str, Any] = {}
        self._failure = ""
        self._problems = problems
        self._verification = Verification(math.nan, "", Verdict.UNSURE, _HASTE)

    def search(self) -> None:
        """Run the search. An error is raised only if no task has a schedule; else it is reported."""
        self._session.spent.add("importing", self._budget.elapsed())  # everything until now
        try:
            with self._interrupts.search():
                self._session.run(self._budget)
        except Exception as error:
            if not self._interrupts.ended:  # other code may turn a KeyboardInterrupt into another exception
                if not any(state.best for state in self._states):
                    raise
                self._failure = f"the search failed: {first_line(error)}"
        if self._session.interrupted:
            self._interrupts.stop()
        elif self._interrupts.ended:  # interrupted before the search began or after it ended
            if not any(state.best for state in self._states):
                self._interrupts.again()
            self._session.interrupted = True

    def choose(self, model: CostModel, pool: Pool, *, seed: int) -> None:
        """Choose a schedule for every task. Choices of a run without measurements are cached for later runs.

        Args:
            model: The cost model.
            pool: The measuring pool.
            seed: The run's seed.
        """
        self._session.deadline.move(self._budget.seconds_to(_CHOOSING), least=_LEAST)
        kept = Predictions(model, seed=seed) if not (model.learned or self._budget.new_trials) else None
        self._check_ahead(model, pool, kept)
        for state in self._states:
            choice, problem = choose_safely(state, model, pool, self._interrupts, kept)
            self._choices.append(choice)
            self._others.append(_others(state, choice))
            self._note(problem)

    def compile(self) -> Compiled:
        """Compile the model with the chosen schedules; replace those that break it.

        Raises:
            CompilationFailed: The model does not compile without schedules either.
        """
        schedules = {
            state.task.key: schedule
            for place, state in enumerate(self._states)
            if (schedule := self._schedule(place)) is not None
        }
        plain: Compiled | None = None
        for _ in range(_CULPRITS):
            try:
                return self._compiled(schedules)
            except Exception as error:  # of TVM, or of one of felixlike's passes
                if not schedules:
                    raise
                if plain is None:
                    plain = self._compiled({})  # raises if the model does not compile without schedules
                if self._interrupts.hurried:
                    break
                key = runtime.culprit(schedules, self._compiled)
                place = next(i for i, state in enumerate(self._states) if state.task.key == key)
                self._give_up(place, f"the model could not be compiled with its schedule ({first_line(error)})")
            schedule = self._schedule(place)
            schedules = {k: s for k, s in schedules.items() if k != key} | ({} if schedule is None else {key: schedule})
        self._choices = [_untuned("the model could not be compiled with its schedules") for _ in self._states]
        self._note("the model could not be compiled with its schedules, and was compiled without any")
        assert plain is not None
        return plain

    def verify(self, compiled: Compiled, about: About) -> None:
        """Compare the model with the original, if possible and not interrupted; see `before_comparing`."""
        if before_comparing.get() is not None:
            self._interrupts.attempt(lambda: hand_over(compiled, self._report(about)), lambda: None)
        try:
            self._verification = self._interrupts.attempt(
                lambda: runtime.max_relative_error(
                    compiled, self._imported.original, self._imported.examples, products=self._rounding()
                ),
                lambda: self._verification,
            )
        except (Exception, SystemExit) as error:  # the user's model may raise anything
            self._verification = replace(self._verification, words=f"comparing failed: {first_line(error)}")

    def _rounding(self) -> float:
        """Return the error allowed for reduced-precision products; 0 if no chosen schedule uses them."""
        precision = precision_of(self._imported.target)
        chosen = {choice.candidate.sketch.precision for choice in self._choices if choice.candidate is not None}
        return precision.model_tolerance if precision.name in chosen else 0.0

    def report(self, about: About, log: RunLog) -> Report:
        """Return the report and write it to the log."""
        report = self._attempt(lambda: self._report(about), None, "the report")
        if report is None:
            report = replace(self._bare(about), note=self._notes())
        log.write("end", report=report.to_json())
        if log.lost:
            self._note(f"the run's log could not be written: {log.lost}")
        return report

    def tell(self, optimized: Any) -> None:
        """Issue the run's warnings; raise VerificationFailed if the model computes something else."""
        name, pending = self._imported.name, list[FelixlikeWarning]()
        if self._failure:
            pending.append(SearchFailedWarning(f"{name}: {self._failure}. This is the best that was found."))
        pending += warnings_of(self._imported)
        pending += [InternalErrorWarning(f"{name}: {words}") for state in self._states if (words := _mistakes(state))]
        pending += [FallbackWarning(f"{name}: {problem}.") for problem in self._problems]
        tell(self._verification, name, optimized, pending)

    def _check_ahead(self, model: CostModel, pool: Pool, kept: Predictions | None) -> None:
        """Check predicted schedules in parallel. If this fails, `choose` checks them one by one."""
        try:
            self._interrupts.attempt(lambda: check_ahead(self._states, model, pool, kept), lambda: None)
        except Exception as error:
            self._note(f"checking schedules together failed: {first_line(error)}")

    def _schedule(self, place: int) -> Any | None:
        """Return a task's scheduled module, or that of the next best schedule; None for the unscheduled function."""
        while (candidate := self._choices[place].candidate) is not None:
            try:
                module = self._scheduled[self._states[place].task.key] = candidate.module()
                return module
            except KeyboardInterrupt as error:
                self._interrupts.give_way(error)
            except Exception as error:
                self._give_up(place, f"its schedule could not be made ({first_line(error)})")
        self._scheduled.pop(self._states[place].task.key, None)
        return None

    def _give_up(self, place: int, why: str) -> None:
        """Replace a task's schedule by the next best one."""
        choice = next(self._others[place]) if self._given_up[place] < _OTHERS else _untuned("")
        self._given_up[place] += 1
        self._choices[place] = replace(choice, note="; ".join(filter(None, (self._choices[place].note, why))))
        self._note(f"{self._states[place].task.name}: {why}")

    def _compiled(self, schedules: Mapping[str, Any]) -> Compiled:
        """Compile the model with these schedules."""
        try:
            return runtime.compile_model(self._imported, schedules)
        except KeyboardInterrupt as error:  # of a foreign signal handler; there is no result before this step
            self._interrupts.give_way(error)
            return runtime.compile_model(self._imported, schedules)

    def _report(self, about: About) -> Report:
        """Return the complete report."""
        tasks = tuple(self._task(state, choice) for state, choice in zip(self._states, self._choices, strict=True))
        return replace(self._bare(about), tasks=tasks, stopped=self._why_stopped(), note=self._notes())

    def _task(self, state: TaskState, choice: Choice) -> TaskReport:
        """Return the report of one task."""
        bare = _bare_task(state, choice)
        if self._interrupts.hurried and choice.candidate is None:  # its sketches may not exist yet
            return bare
        known = self._attempt(lambda: _task_report(state, choice), bare, "the report")
        return self._attempt(lambda: replace(known, story=self._story(state, choice)), known, "the report")

    def _story(self, state: TaskState, choice: Choice) -> TaskHistory:
        """Return the measurements of a task and its loops before and after tuning."""
        scheduled = self._scheduled.get(state.task.key) if choice.candidate is not None else None
        return task_history_of(
            state.history,
            chosen=() if scheduled is None else loop_tree(scheduled["main"].body),
            untuned=loop_tree(state.task.module["main"].body),
        )

    def _bare(self, about: About) -> Report:
        """Return the report without its tasks."""
        return Report(
            model=self._imported.name,
            tasks=(),
            trials=self._budget.new_trials,
            rounds=self._budget.spent_rounds - self._budget.found_rounds,
            seconds=about.tuned,
            total_seconds=time.monotonic() - about.started,
            error=self._verification.error,
            reference=self._verification.reference,
            stopped="",
            device=about.device,
            target=str(self._imported.target),
            versions=versions(),
            seed=about.seed,
            recalled=self._budget.found_trials,
            precision=precision_of(self._imported.target).name,
            spent={step: round(seconds, 3) for step, seconds in self._session.spent.seconds.items()},
        )

    def _notes(self) -> str:
        """Return the remarks of the importer and of the comparison."""
        verdict, words = self._verification.verdict, self._verification.words
        notes = [self._imported.note] if self._imported.note else []
        if verdict is not Verdict.RIGHT:
            summary = "It is wrong" if verdict is Verdict.WRONG else "The whole model was not verified"
            notes.append(f"{summary}: {words}.")
        return " ".join(notes)

    def _why_stopped(self) -> str:
        """Return the reason why the search ended."""
        session, budget = self._session, self._budget
        if self._failure:
            return self._failure
        if session.interrupted:
            return "interrupted"
        if budget.rounds is not None and budget.spent_rounds >= budget.rounds:
            return "the rounds were used up"
        if budget.trials is not None and budget.spent_trials >= budget.trials:
            return "the trials were used up"
        if budget.seconds_left() <= 0:
            return "the time was used up"
        return "nothing was left to try"

    def _attempt(self, step: Callable[[], _T], otherwise: _T, what: str) -> _T:
        """Return the result of an optional step; if it fails, note the problem and return `otherwise`."""
        try:
            return step()
        except KeyboardInterrupt as error:
            self._interrupts.give_way(error)
        except Exception as error:
            self._note(f"{what} failed: {first_line(error)}")
        return otherwise

    def _note(self, problem: str) -> None:
        """Add a problem unless it is empty."""
        if problem:
            self._problems.append(problem)


def tell(found: Verification, name: str, optimized: Any, others: Sequence[FelixlikeWarning] = ()) -> None:
    """Issue the warnings of a run.

    Args:
        found: Result of the comparison with the original.
        name: The model's name.
        optimized: The tuned model, attached to errors and warnings.
        others: Further warnings.

    Raises:
        VerificationFailed: The tuned model computes something else.
    """
    if found.verdict is Verdict.WRONG:
        failed = VerificationFailed(
            f"the tuned model does not compute what the original does ({found.reference}): {found.words}",
            where=name,
            remedy="it is kept as .optimized of this error, to be looked at; please report this with the model",
        )
        failed.optimized = optimized
        raise failed
    pending = list(others)
    if found.verdict is Verdict.RANDOM:
        pending.append(NondeterministicModelWarning(f"{name}: {found.words}."))
    elif found.verdict is Verdict.UNSURE:
        pending.append(UnverifiedWarning(f"{name} was not verified as a whole: {found.words}."))
    if (unusable := user_folders.pending()) is not None:
        pending.append(unusable)
    for warning in pending:
        warning.optimized = optimized
    for warning in pending:
        warnings.warn(warning, stacklevel=callers_level())


def versions() -> dict[str, str]:
    """Return the versions of the libraries that results depend on."""
    packages = ("apache-tvm", "apache-tvm-ffi", "torch", "egglog")
    return {"felixlike": __version__, **{name: metadata.version(name) for name in packages}}


def _others(state: TaskState, choice: Choice) -> Iterator[Choice]:
    """Yield the alternatives to the chosen schedule, best first."""
    tried = choice.candidate and choice.candidate.key
    return (other for other in at_hand(state) if other.candidate is None or other.candidate.key != tried)


def _mistakes(state: TaskState) -> str:
    """Return the internal errors that restricted a task's search; empty without any."""
    if not state.faults:
        return ""
    return (
        f"the search for schedules of {state.task.name} was cut short by a mistake in felixlike"
        f" ({'; '.join(state.faults)}). Please report this with the model."
    )


def _untuned(note: str) -> Choice:
    """Return the choice of the unscheduled function."""
    return Choice(How.UNTUNED, None, math.nan, None, note)


def _task_report(state: TaskState, choice: Choice) -> TaskReport:
    """Return the report of a task with its sketches and its point."""
    candidate = choice.candidate
    names = [v.name for v in candidate.sketch.variables] if candidate else []
    kept = state.kept if candidate and state.kept and candidate is state.kept.candidate else None
    return replace(
        _bare_task(state, choice),
        sketch=candidate.sketch.index if candidate else None,
        sketches=kept.sketches if kept else len(state.space.sketches),
        point=dict(zip(names, candidate.point, strict=True)) if candidate else {},
        sampled=kept.sampled if kept else state.sampled,
        precision=candidate.sketch.precision if candidate else FLOAT32.name,
    )


def _bare_task(state: TaskState, choice: Choice) -> TaskReport:
    """Return the part of a task's report that does not need its sketches."""
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
        note="; ".join(filter(None, (choice.note, *(f"a mistake in felixlike: {fault}" for fault in state.faults)))),
    )
