"""Run the tuning of one model with fixed sizes: import, search, choose, compile, verify, report.

Inputs: a model, its shapes, a `RunConfig`. Output: `Result`. If a step after the search fails or is interrupted, the
next best thing is used (another schedule, the unscheduled function, a model that was not compared), and the report and
a warning say so.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from felixlike import costmodel, records, runtime
from felixlike._util.deadline import Deadline
from felixlike._util.garbage import set_aside
from felixlike._util.interrupts import Interrupts, joined
from felixlike._util.spent import Spent, clock, on, on_task
from felixlike.codegen import KernelObject
from felixlike.costmodel import CostModel
from felixlike.errors import (
    FallbackWarning,
    FelixlikeWarning,
    InternalErrorWarning,
    SearchFailedWarning,
    first_line,
)
from felixlike.frontend import Imported, Task, export_model, import_model
from felixlike.frontend.imported import warnings_of
from felixlike.hardware import kind_of, target_device
from felixlike.measure import Pool
from felixlike.report import Report, RunLog, make_progress
from felixlike.report.progress import Reporter as ProgressDisplay
from felixlike.runtime import Compiled, Verdict, Verification
from felixlike.search import make_strategy
from felixlike.tuning.budget import Budget
from felixlike.tuning.choice import Choice, check_ahead, choose_safely
from felixlike.tuning.compiling import Build, compile_chosen
from felixlike.tuning.config import RunConfig
from felixlike.tuning.finished import Entry, may_reuse, reused_note, reused_report
from felixlike.tuning.in_context import InContext, affordable, is_small, seconds_reserved
from felixlike.tuning.predictions import Predictions
from felixlike.tuning.reporting import (
    Reporter,
    Searched,
    call_fields,
    spent_fields,
    verification_fields,
    verification_note,
    versions,
)
from felixlike.tuning.session import OVERTIME, Event, Session
from felixlike.tuning.state import TaskState
from felixlike.tuning.threads import one_thread
from felixlike.tuning.timing import CallTimes, call_times, require_eager
from felixlike.tuning.tolerance import Alternatives, alternatives, within
from felixlike.tuning.verifying import UNVERIFIED, error_of_precisions, hand_over, verified, verify

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        compiled: The compiled model.
        report: The run's report.
        verification: Result of the comparison with the original.
        warnings: Warnings that are to be issued with the finished model, see `tell`.
    """

    compiled: Compiled
    report: Report
    verification: Verification
    warnings: tuple[FelixlikeWarning, ...]


def tune(model: Any, shapes: Any, example_inputs: Any, config: RunConfig, spent: Spent | None = None) -> Result:
    """Tune a model with fixed sizes.

    Args:
        model: As for `felixlike.optimize`.
        shapes: As for `felixlike.optimize`, without `Dim`s.
        example_inputs: Another name for `shapes`.
        config: The run's options.
        spent: The clock of the run, which may have run before; None for a new one.

    Returns:
        The compiled model, its report and what there is to tell about it.

    Raises:
        FelixlikeError: As for `felixlike.optimize`, except VerificationFailed, which `tell` raises.
    """
    require_eager(model, config)
    with (spent or Spent(config.started)).running():
        result = _tuned(model, shapes, example_inputs, config)
        if not config.wide_tensors and _exceeds(result.verification, config):
            result = _tuned(model, shapes, example_inputs, replace(config, wide_tensors=True))
        return result


def _exceeds(verification: Verification, config: RunConfig) -> bool:
    """Return whether a model's error is larger than the run's tolerance."""
    return config.tolerance is not None and verification.error > config.tolerance


def _tuned(model: Any, shapes: Any, example_inputs: Any, config: RunConfig) -> Result:
    """Tune a model while a clock runs; see `tune`."""
    budget, deadline, problems = config.budget(), Deadline(), list[str]()
    objects: dict[str, KernelObject] | None = {} if may_reuse(config) else None
    open_pool = config.pool_factory(deadline, objects)
    with on("loading packages"):
        predictor = costmodel.load(
            kind_of(config.target).device, config.weights, seed=config.seed, device=target_device(config.target)
        )
    with (
        joined() as interrupts,
        closing(records.open(config.store), problems) as store,
        closing(make_progress(config.progress), problems) as progress,
        closing(RunLog(config.store), problems) as log,
    ):
        run = Run(config, budget, deadline, predictor, store, progress, log, interrupts, problems, objects)
        progress.say("importing the model")
        entry: Entry | None = None
        if may_reuse(config):
            with on("importing"):
                exported = export_model(model, shapes, example_inputs=example_inputs)
                if exported is not model:
                    model, shapes, example_inputs = exported, None, None
                entry = Entry.of(model, config, predictor)
            if entry is not None and (reused := _reused(entry, run)) is not None:
                return reused
        with closing(open_pool(), problems) as pool:  # its processes start while the model is imported
            with on("importing"):
                imported = import_model(
                    model,
                    shapes,
                    config.target,
                    example_inputs=example_inputs,
                    wide_tensors=config.wide_tensors,
                )
            budget.with_default(len(imported.tasks), config.effort)
            log.write("start", **start_event(imported.name, imported.tasks, budget, config))
            with set_aside():
                chosen = run.chosen(imported.tasks, pool)
        session = chosen.session
        compiled = partial(runtime.compile_model, imported)
        if entry is not None:
            compiled = partial(runtime.compile_model, imported, linked=True, objects=objects)
        build, reporter = run.built(imported, chosen, compiled, whole=True)
        rebuilt = partial(run.finished, chosen, compiled) if any(chosen.exact) else None
        imported = bare = replace(imported, module=None)  # frees the weights as imported: the build has its own
        del compiled
        with on("verifying"):
            interrupts.attempt(lambda: hand_over(build.compiled, lambda: reporter.report(UNVERIFIED)), lambda: None)
            verification = verify(imported, build, interrupts)
            build, verification = run.within_tolerance(chosen, build, verification, rebuilt, bare)
            reporter = replace(reporter, build=build)
        if config.compare:
            progress.say("timing the model beside eager PyTorch")
        with on("timing"):
            times = timed(imported, build.compiled, config, verification, interrupts, problems.append)
        report = reporter.report(verification, times)
        complete = not any(choice.late for choice in chosen.choices) and not _exceeds(verification, config)
        if entry is not None and complete and run.is_clean(session) and verification.verdict is Verdict.RIGHT:
            with on("keeping"):
                entry.keep(build.compiled, report)
            seconds = time.monotonic() - config.started
            report = replace(report, total_seconds=seconds, **spent_fields(session.spent))
        problems += log.end(report)
    pending = _warnings(imported, session.states, chosen.searched.failure, problems)
    return Result(build.compiled, report, verification, pending)


def _reused(entry: Entry, run: Run) -> Result | None:
    """Verify and time the model of an earlier run.

    Return None without one, or if it exceeds the tolerance for this run's examples.
    """
    with on("reusing"):
        found = entry.find(run.store)
    if found is None:
        return None
    compiled, earlier = found
    config, interrupts = run.config, run.interrupts
    spent = clock() or Spent(config.started)
    imported = entry.imported(compiled)
    compiled.threads = config.threads or 0
    make = partial(reused_report, earlier, config, spent)
    with on("verifying"):
        interrupts.attempt(lambda: hand_over(compiled, make), lambda: None)
        products = error_of_precisions(config.target, {task.precision for task in earlier.tasks})
        verification = verified(imported, compiled, products, interrupts)
    if _exceeds(verification, config):
        return None
    run.log.write("start", **start_event(imported.name, (), run.budget, config))
    if config.compare:
        run.progress.say("timing the model beside eager PyTorch")
    with on("timing"):
        times = timed(imported, compiled, config, verification, interrupts, run.problems.append)
    note = reused_note(earlier, verification_note(verification), times.words)
    report = make(
        note=note,
        **verification_fields(verification),
        **call_fields(times),
    )
    run.problems.extend(run.log.end(report))
    return Result(compiled, report, verification, _warnings(imported, [], "", run.problems))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The schedules of a run's tasks.

    Attributes:
        session: The session after the search.
        searched: The end of the search.
        choices: The choice of each task.
        exact: For each task that rounds products, a choice that does not, if the run has a tolerance.
    """

    session: Session
    searched: Searched
    choices: Sequence[Choice]
    exact: Alternatives = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What the steps of a run share.

    Attributes:
        config: The run's options.
        budget: The run's limits.
        deadline: The deadline, shared with the measuring pool.
        model: The cost model.
        store: The record store.
        progress: The progress display.
        log: The run's log.
        interrupts: The run's handling of Ctrl-C.
        problems: Descriptions of what failed.
        objects: Machine code of checked kernels by the names of their tasks; None if the run does not use it.
    """

    config: RunConfig
    budget: Budget
    deadline: Deadline
    model: CostModel
    store: records.Store
    progress: ProgressDisplay
    log: RunLog
    interrupts: Interrupts
    problems: list[str]
    objects: dict[str, KernelObject] | None = None

    def chosen(self, tasks: Sequence[Task], pool: Pool) -> Chosen:
        """Search schedules for tasks, and choose one for each."""
        config, interrupts = self.config, self.interrupts
        with one_thread():
            session = Session(
                tasks,
                strategy=make_strategy(config.strategy),
                model=self.model,
                pool=pool,
                store=self.store,
                seed=config.seed,
                space=config.space,
                observe=_observer((self.progress.event, self.log.event), interrupts),
                deadline=self.deadline,
                reserve=seconds_reserved(self.budget.seconds, len(tasks)),
            )
            searched = search(session, self.budget, pool, interrupts)
            again = "; Ctrl-C again leaves out what is still to be checked" if interrupts.ended else ""
            self.progress.say(f"choosing and compiling the best schedules{again}")
            predictions = Predictions(self.model, seed=config.seed, objects=self.objects)
            choices = choose(session, self.budget, self.model, pool, predictions, interrupts, self.problems.append)
            exact: Alternatives = ()
            if config.tolerance is not None:
                exact = alternatives(session.states, choices, self.model, pool, interrupts, self.problems.append)
        return Chosen(session, searched, choices, exact)

    def finished(
        self, chosen: Chosen, compiled: Callable[[Mapping[str, Any]], Compiled], choices: Sequence[Choice]
    ) -> Build:
        """Compile a model with a choice for each task, and replace schedules that fail."""
        states, note = chosen.session.states, self.problems.append
        build = compile_chosen(compiled, states, choices, interrupts=self.interrupts, note=note)
        build.compiled.threads = self.config.threads or 0
        return build

    def within_tolerance(
        self,
        chosen: Chosen,
        build: Build,
        verification: Verification,
        rebuilt: Callable[[Sequence[Choice]], Build] | None,
        imported: Imported,
    ) -> tuple[Build, Verification]:
        """Return a build whose error is within the run's tolerance, if it has one, and its verification."""
        if self.config.tolerance is None:
            return build, verification
        return within(
            self.config.tolerance,
            build,
            verification,
            chosen.exact if rebuilt is not None else (),
            rebuilt=rebuilt or (lambda _: build),
            verified=lambda other: verify(imported, other, self.interrupts),
            interrupts=self.interrupts,
            note=self.problems.append,
        )

    def built(
        self,
        imported: Imported,
        chosen: Chosen,
        compiled: Callable[[Mapping[str, Any]], Compiled],
        *,
        whole: bool = False,
    ) -> tuple[Build, Reporter]:
        """Compile a model with the schedules of its tasks; return also what makes its report.

        Args:
            imported: The model.
            chosen: The schedules.
            compiled: Compiles it with schedules by the tasks' keys.
            whole: Whether the tasks are all of the model, which may then be timed with several schedules.
        """
        session, note = chosen.session, self.problems.append

        finish = partial(self.finished, chosen, compiled)

        def improve(context: InContext, base: Build, others: int) -> Build:
            try:
                return context.improved(base, compiled=compiled, finish=finish, others=others)
            except Exception as error:  # of a schedule in the model
                note(f"timing schedules in the model failed: {first_line(error)}")
                return base

        context = InContext(imported, session.states, chosen.choices) if whole and self._in_context(imported) else None
        started = time.monotonic()
        with on("compiling"):
            build = finish(context.choices() if context else chosen.choices)
        # Choosing and compiling have taken some of the time that was kept for it.
        others = affordable(time.monotonic() - started, self.budget.seconds_left() + OVERTIME.afterwards)
        if context and context.undecided and others:
            self.progress.say("timing the best schedules in the model")
            with on("timing in the model"):
                build = self.interrupts.attempt(partial(improve, context, build, others), lambda: build)
        bare = replace(imported, module=None)  # the build has its own weights
        return build, Reporter(self.config, bare, session, self.budget, chosen.searched, build, self.interrupts, note)

    def is_clean(self, session: Session) -> bool:
        """Return whether the run had no problem, no fault and no interrupt, so that another one would do the same."""
        return not (self.problems or session.interrupted or any(state.faults for state in session.states))

    def _in_context(self, imported: Imported) -> bool:
        """Return whether schedules may be timed in the model: on this machine, where calls leave no traces."""
        config = self.config
        return config.measures and config.is_here and not imported.mutations and is_small(imported)


def search(session: Session, budget: Budget, pool: Pool, interrupts: Interrupts) -> Searched:
    """Run the search. An error is raised only if no task has a schedule; else the result tells it.

    Args:
        session: The tuning session.
        budget: The run's limits.
        pool: The measuring pool.
        interrupts: The run's handling of Ctrl-C, which ends the search.

    Returns:
        The end of the search.
    """
    failure = ""
    try:
        with interrupts.search():
            session.run(budget)
    except Exception as error:
        if not interrupts.ended:  # other code may turn a KeyboardInterrupt into another exception
            if not any(state.best for state in session.states):
                raise
            failure = f"the search failed: {first_line(error)}"
    if session.interrupted:
        interrupts.stop()
    elif interrupts.ended:  # interrupted before the search began or after it ended
        if not any(state.best for state in session.states):
            interrupts.again()
        session.interrupted = True
    return Searched(", ".join(sorted(pool.devices)), budget.elapsed(), failure)


def choose(
    session: Session,
    budget: Budget,
    model: CostModel,
    pool: Pool,
    predictions: Predictions,
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> list[Choice]:
    """Choose a schedule for every task. Choices of a run without measurements are cached for later runs.

    Args:
        session: The session after the search.
        budget: The run's limits.
        model: The cost model.
        pool: The measuring pool.
        predictions: Cached choices, which a run without measurements uses and stores.
        interrupts: The run's handling of Ctrl-C.
        note: Called with the description of each failure.

    Returns:
        The choice of each task.
    """
    with on("choosing"):
        session.deadline.move(budget.seconds_to(OVERTIME.choosing), least=OVERTIME.least)
        cache = None if model.learned or budget.new_trials else predictions
        try:
            interrupts.attempt(lambda: check_ahead(session.states, model, pool, cache), lambda: None)
        except Exception as error:  # they are checked one by one below
            note(f"checking schedules together failed: {first_line(error)}")
        choices: list[Choice] = []
        for state in session.states:
            with on_task(state.task.key):
                choice, problem = choose_safely(state, model, pool, interrupts, cache)
            choices.append(choice)
            if problem:
                note(problem)
    return choices


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


def start_event(name: str, tasks: Sequence[Task], budget: Budget, config: RunConfig) -> dict[str, Any]:
    """Return the values of the event "start", the first of a run's log.

    Args:
        name: The model's name.
        tasks: What is tuned, as far as it is known.
        budget: The run's limits.
        config: The run's options.

    Returns:
        The values by name, for `RunLog.write`.
    """
    return {
        "model": name,
        "target": str(config.target),
        "device": config.device,
        "seed": config.seed,
        "versions": versions(),
        "tracker": config.tracker,
        "budget": {"rounds": budget.rounds, "trials": budget.trials, "seconds": budget.seconds},
        "tasks": {task.key: task.name for task in tasks},
        "calls": {task.key: task.weight for task in tasks},
    }


def timed(
    imported: Imported,
    compiled: Compiled,
    config: RunConfig,
    verification: Verification,
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> CallTimes:
    """Return the latencies of whole calls; none of a wrong model, or if the run was interrupted."""
    if verification.verdict is Verdict.WRONG:
        return CallTimes()
    try:
        return interrupts.attempt(lambda: call_times(imported, compiled, config), CallTimes)
    except Exception as error:  # no space for the saved model, for example
        note(f"timing the model failed: {first_line(error)}")
        return CallTimes()


def _observer(listeners: tuple[Callable[[Event], None], ...], interrupts: Interrupts) -> Callable[[Event], None]:
    """Return the function that passes events to listeners, whose failures do not end the run."""

    def observe(event: Event) -> None:
        for listener in listeners:
            with contextlib.suppress(Exception):
                listener(event)
        interrupts.check()

    return observe


def _warnings(
    imported: Imported, states: list[TaskState], failure: str, problems: list[str]
) -> tuple[FelixlikeWarning, ...]:
    """Return the warnings about a run, except those about its verification."""
    name, pending = imported.name, list[FelixlikeWarning]()
    if failure:
        pending.append(SearchFailedWarning(f"{name}: {failure}. The result is the best one found until then."))
    pending += warnings_of(imported)
    pending += [InternalErrorWarning(f"{name}: {_internal_errors(state)}") for state in states if state.faults]
    pending += [FallbackWarning(f"{name}: {problem}.") for problem in problems]
    return tuple(pending)


def _internal_errors(state: TaskState) -> str:
    """Describe the internal errors that restricted a task's search."""
    return (
        f"the search for schedules of {state.task.name} was cut short by a mistake in felixlike"
        f" ({'; '.join(state.faults)}). Please report this with the model."
    )
