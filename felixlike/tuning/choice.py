"""The schedule each task ends up with: the fastest measured one, else a verified one that was not measured.

In: a finished session's state of a task. Out: `Choice`, always with a verified schedule. Budgets may leave tasks
without any measurement; MetaSchedule would then compile plain loops without a word, here what is predicted to be best
is checked and taken, and the report says so. Whatever fails here, or is cut short: what was measured is at hand.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from felixlike._util.deadline import OutOfTime
from felixlike._util.interrupts import Interrupts
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.errors import InvalidModel, ReferenceFailed, first_line
from felixlike.frontend import Task
from felixlike.measure import Measurement, Pool, Status, Untuned
from felixlike.measure.interface import Checked
from felixlike.search import Candidate, Observations, Predicted
from felixlike.tuning.predictions import Predictions
from felixlike.tuning.state import TaskState

_ATTEMPTS = 6
"""Unmeasured schedules that are checked before the plain loops are taken."""

_SOON, _SOON_IF_PREDICTED = 0.05, 0.5
"""Seconds that a check's run takes at most where the schedule is no disaster, unless the task is large: of one drawn at
random, of one that is predicted to be good."""

_TOO_LATE = "the time was used up before a schedule of it was checked"
_NOT_COMPARED = "the time was used up before its answer could be compared by itself"
_INTERRUPTED = "the run was interrupted before a schedule of it was checked"


class How(StrEnum):
    """Where a schedule comes from."""

    MEASURED = "measured"
    UNMEASURED = "unmeasured"
    """Predicted to be good, and checked, but never timed."""
    UNTUNED = "untuned"
    """The function as it came: no schedule of it could be verified."""


@dataclass(frozen=True, slots=True)
class Choice:
    """candidate: None where untuned.  seconds: a call, nan where not measured.  error: maximum relative error of the
    answer against the float64 reference.  note: what the user should know."""

    how: How
    candidate: Candidate | None
    seconds: float
    error: float | None
    note: str = ""


@default_modes()
def check_ahead(states: Sequence[TaskState], model: CostModel, pool: Pool, kept: Predictions | None = None) -> None:
    """Check the most promising schedule of every task that has none measured, several at a time; `choose` then knows.

    Sketches, formulas and predictions of a task are made while those of others are checked.  kept: where choices of
    earlier runs are, which need no check."""
    bare = [state for state in states if not (state.known.best or state.unverifiable)]
    for state in bare:
        state.kept = kept.find(state) if kept is not None else None
    waiting = [state for state in bare if state.kept is None]
    asked: list[TaskState] = []

    def wanted() -> Iterator[tuple[Task, Candidate]]:
        for state in waiting:
            for first in _unmeasured(state, model)[:1]:
                asked.append(state)
                yield state.task, first

    if waiting:
        with contextlib.closing(pool.checks(wanted())) as results:
            for place, found in results:
                asked[place].first_check = found


@default_modes()
def choose(state: TaskState, model: CostModel, pool: Pool, kept: Predictions | None = None) -> Choice:
    """The schedule of one task.  kept: where to keep one that is only predicted."""
    try:
        for seconds, candidate in state.known.best:
            error = state.measured[candidate.key].error
            if error is None:  # taken over from another tuner, which does not check answers
                checked = pool.check(state.task, candidate)
                if checked.status is not Status.OK:
                    continue
                error = checked.error
            return Choice(How.MEASURED, candidate, seconds, error)
        if state.unverifiable:
            return Choice(How.UNTUNED, None, math.nan, None, state.unverifiable)
        if state.kept is not None:
            return Choice(How.UNMEASURED, state.kept.candidate, math.nan, state.kept.error)
        found = _quickest(state, _unmeasured(state, model), pool)
        if found is not None:
            return _predicted(state, *found, kept)
        checked = pool.check(state.task, Untuned(state.task))
    except (ReferenceFailed, InvalidModel) as error:
        return Choice(How.UNTUNED, None, math.nan, None, error.what)
    except OutOfTime:
        return Choice(How.UNTUNED, None, math.nan, None, _TOO_LATE)
    return Choice(How.UNTUNED, None, math.nan, checked.error, "no schedule of it computed the right answer")


def _predicted(state: TaskState, candidate: Candidate, checked: Measurement, kept: Predictions | None) -> Choice:
    """A schedule that was checked, but for its answer where time was up."""
    if checked.error is None:
        return Choice(How.UNMEASURED, candidate, math.nan, None, _NOT_COMPARED)
    if kept is not None:
        kept.keep(state, candidate, checked.error)
    return Choice(How.UNMEASURED, candidate, math.nan, checked.error)


def choose_safely(
    state: TaskState, model: CostModel, pool: Pool, interrupts: Interrupts, kept: Predictions | None = None
) -> tuple[Choice, str]:
    """The schedule of one task, and what went wrong, if anything did: then it is what is at hand without a check."""
    try:
        return interrupts.attempt(lambda: choose(state, model, pool, kept), lambda: _in_haste(state)), ""
    except Exception as error:  # of the pool, of a schedule, of the search for one: the others need not suffer for it
        why = f"choosing its schedule failed: {first_line(error)}"
        return replace(next(at_hand(state)), note=why), f"{state.task.name}: {why}"


def _in_haste(state: TaskState) -> Choice:
    if state.kept is not None:
        return Choice(How.UNMEASURED, state.kept.candidate, math.nan, state.kept.error)
    if isinstance(state.first_check, Measurement) and state.first_check.status is Status.OK and state.predicted:
        return Choice(How.UNMEASURED, state.predicted[0], math.nan, state.first_check.error)
    found = next(at_hand(state))
    return found if found.candidate is not None else replace(found, note=state.unverifiable or _INTERRUPTED)


def at_hand(state: TaskState) -> Iterator[Choice]:
    """What can be had without another measurement: schedules that were timed and checked, the fastest first; at last
    the function as it came."""
    for seconds, candidate in state.known.best:
        measured = state.measured.get(candidate.key)
        if measured is not None and measured.error is not None:
            yield Choice(How.MEASURED, candidate, seconds, measured.error)
    yield Choice(How.UNTUNED, None, math.nan, None)


def _quickest(state: TaskState, candidates: Sequence[Candidate], pool: Pool) -> tuple[Candidate, Measurement] | None:
    """The first right one with a prediction whose run was soon over; where there is none, the one that was over first.

    A check calls the schedule once, so its run's time tells the schedules that take a thousand times too long, which
    the space holds, from others.  Raises OutOfTime where no right one was found before the deadline."""
    best: tuple[Candidate, Measurement] | None = None
    late: OutOfTime | None = None
    for candidate in candidates:
        checked, state.first_check = state.first_check or _checked(state, candidate, pool), None
        if isinstance(checked, OutOfTime):
            if late is not None:
                break
            late = checked  # each has `Deadline.least` seconds, so one more may take its turn
            continue
        if not isinstance(checked, Measurement):
            raise checked
        if checked.status is not Status.OK:
            continue
        if best is None or checked.run_seconds < best[1].run_seconds:
            best = candidate, checked
        if best[1].run_seconds <= _SOON_IF_PREDICTED and not math.isnan(best[0].score):
            break
    if best is None and late is not None:
        raise late
    return best


def _checked(state: TaskState, candidate: Candidate, pool: Pool) -> Checked:
    try:
        return pool.check(state.task, candidate)
    except OutOfTime as late:
        return late


def _unmeasured(state: TaskState, model: CostModel) -> list[Candidate]:
    """Schedules worth a check, the most promising first; the same every time."""
    if state.predicted is None:
        state.predicted = state.propose(Predicted(model), Observations(set(state.known.seen)), _ATTEMPTS)
    return state.predicted
