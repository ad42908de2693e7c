"""Give up rounded products until a model is as precise as the user wants.

Inputs: a build whose schedules may round factors, its error, and the tolerance. Output: a build whose error is within
the tolerance. Tasks go back to float32 one after the other, the one with the largest error first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from felixlike._util.interrupts import Interrupts
from felixlike.costmodel import CostModel
from felixlike.frontend.constants import has_half_factors
from felixlike.hardware import FLOAT32, precision_of
from felixlike.measure import Pool, Status
from felixlike.runtime import Verification
from felixlike.search import Observations, Predicted
from felixlike.tuning.choice import ATTEMPTS, Choice, How, at_hand
from felixlike.tuning.compiling import Build
from felixlike.tuning.state import TaskState

Alternatives = Sequence[Choice | None]
"""For each task, the float32 choice that may replace its own. None where nothing rounds, or there is no other."""


def alternatives(
    states: Sequence[TaskState],
    choices: Sequence[Choice],
    model: CostModel,
    pool: Pool,
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> Alternatives:
    """Choose a float32 schedule for each task with schedules that round factors.

    A task whose own schedule does not round may get one that does when schedules are timed in the model.

    Args:
        states: The state of each task after the search.
        choices: The choice of each task.
        model: The cost model, which chooses among schedules that were not measured.
        pool: The measuring pool, which checks them.
        interrupts: The run's handling of Ctrl-C.
        note: Called with the name of each task without such a schedule.
    """
    found: list[Choice | None] = []
    for state, choice in zip(states, choices, strict=True):
        exact = None
        if rounds(state, choice):
            exact = interrupts.attempt(lambda state=state: _exact(state, model, pool), lambda: None)  # type: ignore[misc]
            if exact is None:
                note(f"{state.task.name}: no float32 schedule was verified, so it stays rounded")
        elif any(rounds(state, other) for other in at_hand(state)):
            exact = choice
        found.append(exact)
    return found


def rounds(state: TaskState, choice: Choice) -> bool:
    """Return whether a task's schedule rounds factors, which float32 schedules of the same task do not.

    Tasks whose factors are bfloat16 have no others.
    """
    reduced = precision_of(state.task.target).is_reduced or has_half_factors(state.task.module["main"])
    if not reduced or choice.candidate is None or choice.candidate.is_exact:
        return False
    return any(sketch.precision == FLOAT32.name for sketch in state.space.sketches)


def _exact(state: TaskState, model: CostModel, pool: Pool) -> Choice | None:
    """Return the fastest measured float32 schedule of a task, else the best predicted one that is right."""
    for seconds, candidate in state.known.best:
        measured = state.measured.get(candidate.key)
        if candidate.is_exact and measured is not None and measured.error is not None:
            return Choice(How.MEASURED, candidate, seconds, measured.error)
    space = state.space.in_precision(FLOAT32.name)
    known = Observations(set(state.known.seen))
    for candidate in Predicted(model).propose(space, known, ATTEMPTS.checked, state.rng):
        checked = pool.check(state.task, candidate)
        if checked.status is Status.OK:
            return Choice(How.UNMEASURED, candidate, math.nan, checked.error)
    return None


def within(
    tolerance: float,
    build: Build,
    verification: Verification,
    exact: Alternatives,
    *,
    rebuilt: Callable[[Sequence[Choice]], Build],
    verified: Callable[[Build], Verification],
    interrupts: Interrupts,
    note: Callable[[str], None],
) -> tuple[Build, Verification]:
    """Return a build whose error is within the tolerance, and its verification.

    If it is not within the tolerance in float32 either, the last build is returned and `note` is called.

    Args:
        tolerance: Largest error, relative to the largest output.
        build: The model with the fastest schedules.
        verification: Its comparison with the original.
        exact: The float32 choices.
        rebuilt: Compiles the model with other choices.
        verified: Compares a build with the original.
        interrupts: The run's handling of Ctrl-C, which ends the replacing.
        note: Called if the tolerance is exceeded.
    """
    pending = [p for p, choice in enumerate(exact) if choice is not None and choice is not build.choices[p]]
    while verification.error > tolerance and pending and not interrupts.ended:
        worst = max(pending, key=lambda place: build.choices[place].error or 0.0)
        pending.remove(worst)
        choice, choices = exact[worst], list(build.choices)
        assert choice is not None
        why = f"float32, since the model was off by {verification.error:.1e}, more than the tolerance"
        choices[worst] = replace(choice, note="; ".join(filter(None, (choice.note, why))))
        build = rebuilt(choices)
        verification = verified(build)
    if verification.error > tolerance:
        note(f"the model is off by {verification.error:.1e}, more than the tolerance of {tolerance:g}")
    return build, verification
