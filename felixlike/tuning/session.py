"""Rounds over tasks: propose, measure, record, learn.

In: tasks, a strategy, a cost model, a pool of measuring processes, a store. Out: for each task what is known of it.
Every measurement is in the store before it is used. An interrupt ends the run after the candidate under way; nothing
is lost. Felix §3.5, Algorithm 2.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from felixlike._util.deadline import Deadline, OutOfTime
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.errors import FelixlikeError, InvalidModel, ReferenceFailed
from felixlike.frontend import Task
from felixlike.measure import Measurement, Pool, Status
from felixlike.records import Brief, Store, make_record, make_run
from felixlike.search import Candidate, Key, Measured, Observations, Progress, Strategy, next_task
from felixlike.symbolic import SpaceName
from felixlike.tuning.budget import TRIALS_PER_ROUND, Budget
from felixlike.tuning.history import Spent
from felixlike.tuning.state import TaskState

_RECALLED = 1024
"""The most measurements of a task that are recalled in full, half of them the fastest, the others spread over the rest;
of all others a run knows only that they were measured."""

_FIRST = 2
"""Candidates of each task before any has more, where trials are few: the best by prediction, and another."""

_UNDER_WAY = 1.0
"""Seconds after the budget in which what has begun may end: a candidate is built and timed in less."""

_CHECK_SECONDS, _FINISH_SECONDS = 0.4, 0.25
"""What a task costs after the search: if nothing of it was measured, to predict and check a schedule, and always, to
compile it and compare it as part of the model. Measured for ResNet-18, MobileNet-V2, BERT and ViT on two cores."""

_AFTERWARDS = 3.0
"""Seconds after `_UNDER_WAY` that this may take. If it will take longer, the search ends earlier."""

_FEWEST = 4
"""Candidates of a round at least: what comes before the first costs as much as these."""


@dataclass(frozen=True, slots=True)
class Event:
    """What just happened, for progress reports.  state: of the task worked on.  index: its place among the tasks.
    measurement: with its candidate; None at the start of a round."""

    state: TaskState
    index: int
    budget: Budget
    measurement: Measurement | None = None
    candidate: Candidate | None = None


class Session:
    """A tuning run.  model: of the run, for strategies that have none of their own.  space: whose sketches are
    searched, see `SpaceName`.  observe: called with every Event; it must not raise.  deadline: shared with the pool;
    the search moves it, and has measured nothing more once it has passed.  spent: on what its time went."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        strategy: Strategy,
        model: CostModel,
        pool: Pool,
        store: Store,
        seed: int = 0,
        space: str = SpaceName.BEST,
        observe: Callable[[Event], None] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = Deadline() if deadline is None else deadline
        self.states = [
            TaskState(
                task,
                np.random.default_rng(_seed(seed, task)),
                progress=Progress(task.weight),
                space_name=space,
                deadline=self.deadline,
            )
            for task in tasks
        ]
        self.interrupted = False
        self.spent = Spent()
        self._strategy, self._pool, self._store = strategy, pool, store
        self._weights = model.version()
        strategy.begin(model)
        self._seed = seed
        self._observe = observe if observe is not None else _ignore

    @default_modes()
    def run(self, budget: Budget) -> None:
        """Spend what is left of the budget once all that the store holds is counted.

        An interrupt (Ctrl-C) ends the run early and sets `interrupted`."""
        if not self.states:
            return
        budget.over_all(len(self.states))
        run = make_run([state.task for state in self.states], weights=self._weights, seed=self._seed)
        budget.find(seconds=self._store.begin(run))
        recalled = 0
        try:
            for state in self.states:
                with self.spent.on("recalling"):
                    self._recall(state, budget)
                recalled += 1
            while (count := budget.next_batch()) and (index := self._next()) is not None:
                self._move_deadline(budget)
                if self.deadline.passed:
                    break
                self._round(index, min(count, self._share(budget)), budget)
                self._store.spend(run, budget.elapsed())
        except KeyboardInterrupt:
            self.interrupted = True
            for state in self.states[recalled:]:  # else what an earlier run has found would not be chosen from
                state.known, state.measured = Observations(), {}
                self._recall(state, Budget())
            self._store.spend(run, budget.elapsed())

    def _move_deadline(self, budget: Budget) -> None:
        """Leave time for what follows the search, which is longer for models of many tasks."""
        unmeasured = sum(not state.known.best for state in self.states)
        afterwards = _CHECK_SECONDS * unmeasured + _FINISH_SECONDS * len(self.states)
        self.deadline.move(budget.seconds_to(_UNDER_WAY - max(0.0, afterwards - _AFTERWARDS)))

    def _next(self) -> int | None:
        return next_task([state.progress for state in self.states])

    def _share(self, budget: Budget) -> int:
        """The most candidates of a round, so that whatever the budget all tasks are measured before one is measured
        twice. Where trials are too few for full rounds, each task first has one or two, then they go where they gain
        most. Where time is limited, those that wait share what is left; the first of them, which are the heaviest, may
        take up to twice an equal share."""
        waiting = sum(not state.progress.best and not state.progress.exhausted for state in self.states)
        share = TRIALS_PER_ROUND
        several = len(self.states) > 1
        if several and waiting and (each := budget.trials_left() // waiting) < TRIALS_PER_ROUND:
            share = min(_FIRST, max(1, int(each)))
        elif several and budget.trials is not None and budget.trials < TRIALS_PER_ROUND * len(self.states):
            share = _FEWEST
        if math.isinf(budget.seconds_left()) or not waiting or not budget.new_trials:
            return share
        seconds = budget.elapsed() / budget.new_trials
        return min(share, max(_FEWEST, int(2.0 * budget.seconds_left() / (waiting + 1) / seconds)))

    def _round(self, index: int, count: int, budget: Budget) -> None:
        """One round of one task; less of it, or nothing, where the deadline passes."""
        state = self.states[index]
        self._observe(Event(state, index, budget))
        with self.spent.on("proposing"):
            try:
                candidates, begun, nothing_left = self._propose(state, count)
            except OutOfTime:
                return
        if not candidates:
            state.progress.exhausted = True
            return
        try:
            with self.spent.on("measuring"):
                measured = self._measure(state, index, candidates, budget)
        except (ReferenceFailed, InvalidModel) as error:
            state.unverifiable = error.what  # the remedy is for who measures by hand
            state.progress.exhausted = True
            return
        except (FelixlikeError, OSError):  # of the pool, or of the store
            raise
        except Exception as error:  # of a schedule
            state.fault(error)
            state.progress.exhausted = True
            return
        if not measured:
            return
        budget.spent_rounds += not begun
        state.progress.add(state.best[0] if state.best else math.inf, len(measured))
        state.progress.exhausted = nothing_left
        with self.spent.on("learning"):
            state.observe(self._strategy, measured)

    def _propose(self, state: TaskState, count: int) -> tuple[list[Candidate], bool, bool]:
        """The candidates of the task's next round; whether an earlier run had begun it, and counted it; and whether
        there are no more after them.

        Every round has a random generator of its own, and one that an earlier run did not finish is proposed as if
        nothing of it were known, and then finished: so runs that are stopped and resumed measure the same candidates as
        one that is not, as far as these do not depend on what was measured."""
        while True:
            state.rng = np.random.default_rng([_seed(self._seed, state.task), state.rounds])
            state.rounds += 1
            done, state.interrupted = state.interrupted, frozenset()
            before = state.known if not done else Observations(state.known.seen - done, state.known.best)
            wanted = min(TRIALS_PER_ROUND, count + len(done))
            proposed = state.propose(self._strategy, before, wanted)
            fresh = [candidate for candidate in proposed if candidate.key not in state.known.seen][:count]
            begun = bool(done) and done <= {candidate.key for candidate in proposed}
            if fresh or not begun:
                return fresh, begun, len(proposed) < wanted

    def _measure(self, state: TaskState, index: int, candidates: Sequence[Candidate], budget: Budget) -> list[Measured]:
        """Measure until done or out of time; each result is recorded before anything else happens."""
        done: list[Measured] = []
        best = state.best[0] if state.best else None
        with (
            contextlib.closing(self._pool.stream(state.task, candidates, best=best)) as results,
            contextlib.suppress(OutOfTime),
        ):
            for place, measurement in results:
                candidate = candidates[place]
                self._store.append(
                    state.task,
                    make_record(state.task, candidate.sketch.key, candidate.point, measurement, seed=self._seed),
                    candidate.sketch,
                )
                done.append(Measured(candidate, self._note(state, candidate, measurement)))
                state.trials += 1
                state.history.add(budget.elapsed(), candidate.score, measurement)
                budget.spent_trials += 1
                self._observe(Event(state, index, budget, measurement, candidate))
                if budget.seconds_left() <= 0:
                    break
        return done

    def _note(self, state: TaskState, candidate: Candidate, measurement: Measurement) -> float:
        """Take a measurement into what is known; its seconds, inf where it is not right."""
        seconds = measurement.seconds if measurement.status is Status.OK else math.inf
        state.known.add(candidate, seconds)
        state.progress.cost += measurement.build_seconds + measurement.run_seconds
        if measurement.status is Status.OK:
            state.measured[candidate.key] = measurement
        else:
            state.failures[measurement.status.value] = state.failures.get(measurement.status.value, 0) + 1
        return seconds

    def _recall(self, state: TaskState, budget: Budget) -> None:
        """Start from what the store knows of the task on the devices that measure, and count it."""
        numbers, spent, history = array("q"), array("d"), array("d")
        last: deque[Key] = deque(maxlen=TRIALS_PER_ROUND - 1)
        for brief in self._briefs(state.task):
            state.known.seen.add((brief.sketch, brief.point))
            numbers.append(brief.id)
            spent.append(brief.seconds)
            if brief.own:
                history.append(brief.seconds)
                last.append((brief.sketch, brief.point))
        if not numbers:
            return
        rounds = _best_after_rounds(np.array(history))
        for number, best in enumerate(rounds):
            state.progress.add(best, min(TRIALS_PER_ROUND, len(history) - number * TRIALS_PER_ROUND))
        budget.find(rounds=len(rounds), trials=len(history))
        state.recalled, state.recalled_failures = len(history), sum(map(math.isinf, history))
        state.rounds, begun = divmod(len(history), TRIALS_PER_ROUND)
        state.interrupted = frozenset(list(last)[len(last) - begun :])
        latest: dict[tuple[str, tuple[int, ...]], tuple[Candidate, Measurement]] = {}
        for record in self._store.numbered(_worth_recalling(np.array(numbers), np.array(spent))):
            candidate = state.space.stored(record.sketch, record.point)
            if candidate is not None:
                latest[candidate.key] = (candidate, record.measurement)
        recalled = [Measured(candidate, self._note(state, candidate, found)) for candidate, found in latest.values()]
        state.failures.clear()  # those of earlier runs are not this run's
        state.history.known = state.best[0] if state.best else math.inf
        state.observe(self._strategy, recalled, recalled=True)

    def _briefs(self, task: Task) -> Iterator[Brief]:
        return chain.from_iterable(self._store.briefs(task, device=device) for device in sorted(self._pool.devices))


def _best_after_rounds(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """The best latency after each round that a task has had: every TRIALS_PER_ROUND measurements, begun ones too."""
    if not len(seconds):
        return []
    best = np.fmin.accumulate(seconds)  # nan: only checked
    ends = np.arange(TRIALS_PER_ROUND, len(best) + TRIALS_PER_ROUND, TRIALS_PER_ROUND)
    return [math.inf if math.isnan(b) else float(b) for b in best[np.minimum(ends, len(best)) - 1]]


def _worth_recalling(
    numbers: np.ndarray[Any, np.dtype[np.int64]], seconds: np.ndarray[Any, np.dtype[np.float64]]
) -> list[int]:
    """The numbers of at most _RECALLED measurements: the fastest ones, and others evenly over the rest."""
    if len(numbers) <= _RECALLED:
        return [int(n) for n in numbers]
    order = np.argsort(seconds, kind="stable")  # nan last
    fastest, rest = order[: _RECALLED // 2], order[_RECALLED // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, _RECALLED - len(fastest)).astype(np.int64)]
    return [int(n) for n in numbers[np.concatenate([fastest, spread])]]


def _seed(seed: int, task: Task) -> int:
    """A seed of its own for every task, whatever the others are."""
    return int.from_bytes(hashlib.sha256(f"{seed} {task.key}".encode()).digest()[:8], "little")


def _ignore(_: Event) -> None:
    pass
