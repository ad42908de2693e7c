"""Run rounds over tasks: propose, measure, record, learn (Felix §3.5, Algorithm 2).

Inputs: tasks, a strategy, a cost model, a measuring pool and a record store. Output: the state of each task. Every
measurement is in the store before it is used. An interrupt ends the run after the current candidate and loses nothing.
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
from felixlike._util.spent import Spent, clock
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.errors import FelixlikeError, InvalidModel, ReferenceFailed
from felixlike.frontend import Task
from felixlike.measure import Measurement, Pool, Status
from felixlike.records import Brief, Store, make_record, make_run
from felixlike.search import (
    Candidate,
    Key,
    Measured,
    Observations,
    Progress,
    Strategy,
    next_task,
    similarity_tag,
    worthwhile,
)
from felixlike.symbolic import SpaceName
from felixlike.tuning.budget import TRIALS_PER_ROUND, Budget
from felixlike.tuning.state import TaskState


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many measurements are loaded and how many candidates a round has. All values are chosen by hand.

    Attributes:
        recalled: Maximum number of a task's stored measurements to load in full: half are the fastest, half are spread
            evenly over the rest. Of the others a run only loads the keys.
        first: Candidates per task in the first rounds if trials are few: the best by prediction and another one.
        fewest: Minimum number of candidates per round: the preparation of a round costs as much as measuring these.
    """

    recalled: int = 1024
    first: int = 2
    fewest: int = 4


@dataclass(frozen=True, slots=True)
class Overtime:
    """How long a run may take after its budget, so that it ends 5 s after it.

    `check` and `finish` are measured for ResNet-18, MobileNet-V2, BERT and ViT on two cores; the other values are
    chosen by hand.

    Attributes:
        under_way: Seconds after the budget within which started candidates may finish. Building and timing one takes
            less.
        check: Seconds to predict and check a schedule, per task without measurements.
        finish: Seconds per task to compile it and compare it as a part of the model.
        afterwards: Seconds after `under_way` that these steps may take. If they need more, the search ends earlier.
        choosing: Seconds after the budget during which schedules may be chosen: compiling and comparing a model take 1
            to 2 s. Builds that do not end are aborted by then.
        least: Minimum time limit in seconds for a check's build, and for its run: five times what nearly all take when
            idle.
    """

    under_way: float = 1.0
    check: float = 0.4
    finish: float = 0.25
    afterwards: float = 3.0
    choosing: float = 2.5
    least: float = 2.5


_ROUNDS = Rounds()
OVERTIME = Overtime()


@dataclass(frozen=True, slots=True)
class Event:
    """A progress event.

    Attributes:
        state: State of the current task.
        index: Index of the task.
        budget: The run's budget.
        measurement: The new measurement; None at the start of a round.
        candidate: The measured candidate; None at the start of a round.
    """

    state: TaskState
    index: int
    budget: Budget
    measurement: Measurement | None = None
    candidate: Candidate | None = None


class Session:
    """The search of one run.

    Args:
        tasks: The tasks to tune.
        strategy: The search strategy.
        model: The run's cost model, passed to `strategy.begin`.
        pool: The measuring pool.
        store: The record store.
        seed: The run's seed.
        space: Name of the design space, see `SpaceName`.
        observe: Called with every `Event`. It must not raise anything but KeyboardInterrupt.
        deadline: Deadline shared with the pool. The search moves it, and measures nothing after it.
        reserve: Seconds before the budget's end at which the search ends.

    Attributes:
        states: The state of each task.
        interrupted: Whether an interrupt ended the run.
        settled: Whether the run ended since another round was not worth it for any task.
        spent: Seconds per step of the run: the clock that runs in this thread, else a new one.
    """

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
        reserve: float = 0.0,
    ) -> None:
        self.deadline = Deadline() if deadline is None else deadline
        self.states = [
            TaskState(
                task,
                np.random.default_rng(_seed(seed, task)),
                progress=Progress(task.weight, task.flops, _tag(task, strategy)),
                space_name=space,
                deadline=self.deadline,
            )
            for task in tasks
        ]
        self.interrupted = self.settled = False
        self.spent = clock() or Spent()
        self._strategy, self._pool, self._store = strategy, pool, store
        self._weights = model.version()
        strategy.begin(model)
        self._seed = seed
        self._reserve = reserve
        self._observe = observe if observe is not None else _ignore

    @default_modes()
    def run(self, budget: Budget) -> None:
        """Load the store's records, count them against the budget, and search until the budget is used up.

        An interrupt (Ctrl-C) ends the run early and sets `interrupted`.

        Args:
            budget: The limits; the amounts spent are updated.
        """
        if not self.states:
            return
        budget.over_all(len(self.states), self._strategy.trials_per_round)
        run = make_run([state.task for state in self.states], weights=self._weights, seed=self._seed)
        budget.find(seconds=self._store.begin(run))
        recalled = 0
        try:
            for state in self.states:
                with self.spent.on("recalling"), self.spent.on_task(state.task.key):
                    self._recall(state, budget)
                recalled += 1
            while (count := budget.next_batch(self._strategy.trials_per_round)) and (
                index := self._next(budget)
            ) is not None:
                self._move_deadline(budget)
                if self.deadline.passed:
                    break
                with self.spent.on_task(self.states[index].task.key):
                    self._round(index, min(count, self._share(budget)), budget)
                self._store.spend(run, budget.elapsed())
        except KeyboardInterrupt:
            self.interrupted = True
            for state in self.states[recalled:]:  # so that earlier runs' schedules can be chosen
                state.known, state.measured = Observations(), {}
                self._recall(state, Budget())
            self._store.spend(run, budget.elapsed())

    @property
    def progress(self) -> list[Progress]:
        """Return the history of each task."""
        return [state.progress for state in self.states]

    def _move_deadline(self, budget: Budget) -> None:
        """Move the deadline to leave time for later steps, which take longer for models of many tasks."""
        unmeasured = sum(not state.known.best for state in self.states)
        afterwards = OVERTIME.check * unmeasured + OVERTIME.finish * len(self.states)
        earlier = max(0.0, afterwards - OVERTIME.afterwards) + self._reserve
        self.deadline.move(budget.seconds_to(OVERTIME.under_way - earlier))

    @property
    def _per_round(self) -> int:
        """Return the maximum number of candidates of a round."""
        return self._strategy.trials_per_round or TRIALS_PER_ROUND

    def _next(self, budget: Budget) -> int | None:
        """Return the index of the task for the next round; None if all are exhausted, or none is worth it."""
        among = worthwhile(self.progress, budget.least_gain) if budget.least_gain else None
        self.settled = among == [] and not all(task.exhausted for task in self.progress)
        return next_task(self.progress, self._strategy.scheduling, among)

    def _share(self, budget: Budget) -> int:
        """Return the maximum number of candidates of a round, so that every task has a round before one has a second.

        If trials are too few for full rounds, each task first gets one or two, and the rest goes where it gains most.
        If time is limited, tasks without a round share what is left. The first of them, which are the heaviest, may
        take up to twice an equal share."""
        waiting = sum(not state.progress.best and not state.progress.exhausted for state in self.states)
        share = self._per_round
        several = len(self.states) > 1
        if several and waiting and (each := budget.trials_left() // waiting) < self._per_round:
            share = min(_ROUNDS.first, max(1, int(each)))
        elif several and budget.trials is not None and budget.trials < self._per_round * len(self.states):
            share = _ROUNDS.fewest
        if math.isinf(budget.seconds_left()) or not waiting or not budget.new_trials:
            return share
        seconds = budget.elapsed() / budget.new_trials
        return min(share, max(_ROUNDS.fewest, int(2.0 * budget.seconds_left() / (waiting + 1) / seconds)))

    def _round(self, index: int, count: int, budget: Budget) -> None:
        """Run one round of one task. The deadline may cut it short."""
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
            state.unverifiable = error.what  # without the remedy, which is for manual measuring
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
        state.history.first = state.history.first or len(measured)
        budget.spent_rounds += not begun
        state.progress.add(state.best[0] if state.best else math.inf, len(measured))
        state.progress.exhausted = nothing_left
        with self.spent.on("learning"):
            state.observe(self._strategy, measured)

    def _propose(self, state: TaskState, count: int) -> tuple[list[Candidate], bool, bool]:
        """Return the candidates of the next round, whether an earlier run began it, and whether no others are left.

        Every round has its own random generator. An unfinished round of an earlier run is proposed as if none of its
        results were known, and then completed. Stopped and resumed runs therefore measure the same candidates as an
        uninterrupted run, except where these depend on measurements."""
        while True:
            state.rng = np.random.default_rng([_seed(self._seed, state.task), state.rounds])
            state.rounds += 1
            done, state.interrupted = state.interrupted, frozenset()
            before = state.known if not done else Observations(state.known.seen - done, state.known.best)
            total = min(self._per_round, count + len(done))
            proposed = state.propose(self._strategy, before, total)
            fresh = [candidate for candidate in proposed if candidate.key not in state.known.seen][:count]
            begun = bool(done) and done <= {candidate.key for candidate in proposed}
            if fresh or not begun:
                return fresh, begun, len(proposed) < total

    def _measure(self, state: TaskState, index: int, candidates: Sequence[Candidate], budget: Budget) -> list[Measured]:
        """Measure candidates until all are done or time is up. Each result is stored before it is used."""
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
        """Add a measurement to the task's state; return its seconds, inf if it failed or its output was wrong."""
        seconds = measurement.seconds if measurement.status is Status.OK else math.inf
        state.known.add(candidate, seconds)
        state.progress.cost += measurement.build_seconds + measurement.run_seconds
        if measurement.status is Status.OK:
            state.measured[candidate.key] = measurement
        else:
            state.failures[measurement.status.value] = state.failures.get(measurement.status.value, 0) + 1
        return seconds

    def _recall(self, state: TaskState, budget: Budget) -> None:
        """Load the stored records of the task on the measuring devices, and count them against the budget."""
        numbers, spent, history = array("q"), array("d"), array("d")
        last: deque[Key] = deque(maxlen=self._per_round - 1)
        for brief in self._briefs(state.task):
            state.known.seen.add((brief.sketch, brief.point))
            numbers.append(brief.id)
            spent.append(brief.seconds)
            if brief.own:
                history.append(brief.seconds)
                last.append((brief.sketch, brief.point))
        if not numbers:
            return
        rounds = _best_after_rounds(np.array(history), self._per_round)
        for number, best in enumerate(rounds):
            state.progress.add(best, min(self._per_round, len(history) - number * self._per_round))
        budget.find(rounds=len(rounds), trials=len(history))
        state.recalled, state.recalled_failures = len(history), sum(map(math.isinf, history))
        state.rounds, begun = divmod(len(history), self._per_round)
        state.interrupted = frozenset(list(last)[len(last) - begun :])
        latest: dict[tuple[str, tuple[int, ...]], tuple[Candidate, Measurement]] = {}
        for record in self._store.numbered(_worth_recalling(np.array(numbers), np.array(spent))):
            candidate = state.space.stored(record.sketch, record.point)
            if candidate is not None:
                latest[candidate.key] = (candidate, record.measurement)
        recalled = [
            Measured(candidate, self._note(state, candidate, measurement)) for candidate, measurement in latest.values()
        ]
        state.failures.clear()  # count this run's failures only
        state.history.known = state.best[0] if state.best else math.inf
        state.observe(self._strategy, recalled, recalled=True)

    def _briefs(self, task: Task) -> Iterator[Brief]:
        """Yield short forms of a task's records on the measuring devices."""
        return chain.from_iterable(self._store.briefs(task, device=device) for device in sorted(self._pool.devices))


def _best_after_rounds(seconds: np.ndarray[Any, np.dtype[np.float64]], trials: int) -> list[float]:
    """Return the best latency after each round of `trials` measurements, an unfinished one included."""
    if not len(seconds):
        return []
    best = np.fmin.accumulate(seconds)  # nan: checked but not timed
    ends = np.arange(trials, len(best) + trials, trials)
    return [math.inf if math.isnan(b) else float(b) for b in best[np.minimum(ends, len(best)) - 1]]


def _worth_recalling(
    numbers: np.ndarray[Any, np.dtype[np.int64]], seconds: np.ndarray[Any, np.dtype[np.float64]]
) -> list[int]:
    """Return the ids of the measurements to load in full, see `Rounds.recalled`."""
    most = _ROUNDS.recalled
    if len(numbers) <= most:
        return [int(n) for n in numbers]
    order = np.argsort(seconds, kind="stable")  # nan last
    fastest, rest = order[: most // 2], order[most // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, most - len(fastest)).astype(np.int64)]
    return [int(n) for n in numbers[np.concatenate([fastest, spread])]]


def _seed(seed: int, task: Task) -> int:
    """Return the seed of a task, which does not depend on the other tasks."""
    return int.from_bytes(hashlib.sha256(f"{seed} {task.key}".encode()).digest()[:8], "little")


def _tag(task: Task, strategy: Strategy) -> str:
    """Return the tag of similar tasks, if the strategy uses it."""
    return similarity_tag(task) if strategy.scheduling.similarity is not None else ""


def _ignore(_: Event) -> None:
    """Ignore an event."""
