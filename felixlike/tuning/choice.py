"""Choose the final schedule of each task: the fastest measured one, else a verified one that was not measured.

Input: a task's state after the search. Output: `Choice`. A budget may leave a task without measurements. MetaSchedule
would silently compile the unscheduled function. Here the schedule with the best prediction is verified and used, and
the report says so. If this step fails or is interrupted, measured schedules remain available.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from felixlike._util.deadline import OutOfTime
from felixlike._util.interrupts import Interrupts
from felixlike._util.spent import on_task
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.errors import InvalidModel, ReferenceFailed, first_line
from felixlike.frontend import Task
from felixlike.measure import Measurement, Pool, Status, Untuned
from felixlike.measure.interface import Checked
from felixlike.search import Candidate, Observations, Predicted
from felixlike.tuning.predictions import Predictions
from felixlike.tuning.state import TaskState


@dataclass(frozen=True, slots=True)
class Attempts:
    """How many schedules are tried before the unscheduled function is used. All values are chosen by hand.

    Attributes:
        checked: Maximum number of a task's unmeasured schedules to check.
        soon: Seconds within which the check of a predicted schedule must run for it to be accepted at once.
        others: Maximum number of a task's next best schedules to try when the model is compiled.
        culprits: Maximum number of schedules to replace because they break compilation; then none is used.
    """

    checked: int = 6
    soon: float = 0.5
    others: int = 2
    culprits: int = 8


ATTEMPTS = Attempts()

_TOO_LATE = "the time was used up before a schedule of it was checked"
_NOT_COMPARED = "the time was used up before its answer could be compared by itself"
_INTERRUPTED = "the run was interrupted before a schedule of it was checked"


class How(StrEnum):
    """The origin of a schedule."""

    MEASURED = "measured"
    UNMEASURED = "unmeasured"
    """Selected by prediction and verified, but not timed."""
    UNTUNED = "untuned"
    """The unscheduled function: no schedule could be verified."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule chosen for a task.

    Attributes:
        how: Origin of the schedule.
        candidate: The candidate; None if untuned.
        seconds: Seconds per call; nan if not measured.
        error: Maximum relative error of the output against the float64 reference; None if not compared.
        note: A remark for the report.
        late: Whether checks took longer than their time limit, so that a run on a less busy machine may choose another.
    """

    how: How
    candidate: Candidate | None
    seconds: float
    error: float | None
    note: str = ""
    late: bool = False


def untuned(note: str = "") -> Choice:
    """Return the choice of the unscheduled function, not compared with a reference."""
    return Choice(How.UNTUNED, None, math.nan, None, note)


@default_modes()
def check_ahead(states: Sequence[TaskState], model: CostModel, pool: Pool, kept: Predictions | None = None) -> None:
    """Check the best predicted schedule of every unmeasured task, several in parallel, for later use by `choose`.

    A task's sketches, formulas and predictions are computed while schedules of other tasks are checked.

    Args:
        states: All tasks.
        model: The cost model.
        pool: The measuring pool.
        kept: Cache with the choices of earlier runs, which need no check.
    """
    bare = [state for state in states if not (state.known.best or state.unverifiable)]
    for state in bare:
        with on_task(state.task.key):
            state.kept = kept.find(state) if kept is not None else None
    waiting = [state for state in bare if state.kept is None]
    submitted: list[TaskState] = []

    def requests() -> Iterator[tuple[Task, Candidate]]:
        for state in waiting:
            with on_task(state.task.key):
                candidates = _unmeasured(state, model)
            for first in candidates[:1]:
                submitted.append(state)
                yield state.task, first

    if waiting:
        with contextlib.closing(pool.checks(requests())) as results:
            for index, result in results:
                submitted[index].first_check = result


@default_modes()
def choose(state: TaskState, model: CostModel, pool: Pool, kept: Predictions | None = None) -> Choice:
    """Choose the schedule of one task.

    Args:
        state: The task.
        model: The cost model.
        pool: The measuring pool.
        kept: Cache that stores a schedule selected by prediction; None for no cache.
    """
    try:
        for seconds, candidate in state.known.best:
            error = state.measured[candidate.key].error
            if error is None:  # a record of another tuner, which does not check outputs
                checked = pool.check(state.task, candidate)
                if checked.status is not Status.OK:
                    continue
                error = checked.error
            return Choice(How.MEASURED, candidate, seconds, error)
        if state.unverifiable:
            return untuned(state.unverifiable)
        if state.kept is not None:
            return Choice(How.UNMEASURED, state.kept.candidate, math.nan, state.kept.error)
        failed: list[Status] = []
        quickest = _quickest(state, _unmeasured(state, model), pool, failed)
        if quickest is not None:
            return _predicted(state, *quickest, kept)
        checked = pool.check(state.task, Untuned(state.task))
    except (ReferenceFailed, InvalidModel) as error:
        return untuned(error.what)
    except OutOfTime:
        return untuned(_TOO_LATE)
    return Choice(How.UNTUNED, None, math.nan, checked.error, _no_schedule(failed), Status.TIMEOUT in failed)


def _no_schedule(failed: Sequence[Status]) -> str:
    """Return why no schedule is used, from the statuses of the failed checks."""
    if not failed:
        return "it has no schedule that could be checked"
    counts = ", ".join(f"{count} × {status.value}" for status, count in Counter(failed).items())
    return f"no schedule of it passed the check ({counts})"


def _predicted(state: TaskState, candidate: Candidate, checked: Measurement, kept: Predictions | None) -> Choice:
    """Return the choice of a checked schedule, whose output was not compared if the time was up."""
    if checked.error is None:
        return Choice(How.UNMEASURED, candidate, math.nan, None, _NOT_COMPARED)
    if kept is not None:
        kept.keep(state, candidate, checked.error)
    return Choice(How.UNMEASURED, candidate, math.nan, checked.error)


def choose_safely(
    state: TaskState, model: CostModel, pool: Pool, interrupts: Interrupts, kept: Predictions | None = None
) -> tuple[Choice, str]:
    """Choose the schedule of one task; after a failure use one that needs no check.

    Return the choice and a description of the failure, empty without one."""
    try:
        return interrupts.attempt(lambda: choose(state, model, pool, kept), lambda: _in_haste(state)), ""
    except Exception as error:  # of the pool, a schedule or the search; other tasks are unaffected
        why = f"choosing its schedule failed: {first_line(error)}"
        return replace(next(at_hand(state)), note=why), f"{state.task.name}: {why}"


def _in_haste(state: TaskState) -> Choice:
    """Choose a schedule without any further check, after an interrupt."""
    if state.kept is not None:
        return Choice(How.UNMEASURED, state.kept.candidate, math.nan, state.kept.error)
    if isinstance(state.first_check, Measurement) and state.first_check.status is Status.OK and state.predicted:
        return Choice(How.UNMEASURED, state.predicted[0], math.nan, state.first_check.error)
    choice = next(at_hand(state))
    return choice if choice.candidate is not None else replace(choice, note=state.unverifiable or _INTERRUPTED)


def at_hand(state: TaskState) -> Iterator[Choice]:
    """Yield the choices that need no further measurement.

    These are the timed and verified schedules, fastest first, and then the unscheduled function."""
    for seconds, candidate in state.known.best:
        measured = state.measured.get(candidate.key)
        if measured is not None and measured.error is not None:
            yield Choice(How.MEASURED, candidate, seconds, measured.error)
    yield untuned()


def _quickest(
    state: TaskState, candidates: Sequence[Candidate], pool: Pool, failed: list[Status]
) -> tuple[Candidate, Measurement] | None:
    """Return the first correct predicted schedule whose check ran fast enough, else the one whose check ran fastest.

    A check calls the schedule once. Its time identifies schedules that are a thousand times too slow, which the space
    contains. Add the statuses of failed checks to `failed`. Raise OutOfTime if no correct schedule was found before the
    deadline."""
    best: tuple[Candidate, Measurement] | None = None
    late: OutOfTime | None = None
    for candidate in candidates:
        checked, state.first_check = state.first_check or _checked(state, candidate, pool), None
        if isinstance(checked, OutOfTime):
            if late is not None:
                break
            late = checked  # each check has `Deadline.least` seconds, so try one more
            continue
        if not isinstance(checked, Measurement):
            raise checked
        if checked.status is not Status.OK:
            failed.append(checked.status)
            continue
        if best is None or checked.run_seconds < best[1].run_seconds:
            best = candidate, checked
        if best[1].run_seconds <= ATTEMPTS.soon and _has_reason(best[0]):
            break
    if best is None and late is not None:
        raise late
    return best


def _has_reason(candidate: Candidate) -> bool:
    """Return whether a candidate has a score, or rounds factors, which rules offer where that is faster."""
    return not math.isnan(candidate.score) or not candidate.is_exact


def _checked(state: TaskState, candidate: Candidate, pool: Pool) -> Checked:
    """Check a candidate; return OutOfTime instead of raising it."""
    try:
        return pool.check(state.task, candidate)
    except OutOfTime as late:
        return late


def _unmeasured(state: TaskState, model: CostModel) -> list[Candidate]:
    """Return the unmeasured schedules with the best predictions, best first; the list is computed once."""
    if state.predicted is None:
        state.predicted = state.propose(Predicted(model), Observations(set(state.known.seen)), ATTEMPTS.checked)
    return state.predicted
