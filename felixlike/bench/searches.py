"""Run one search of tasks and record how their best latencies fall over seconds.

Inputs: tasks, a strategy, a limit. Output: the candidates in the order of their results, each with the seconds since
the start of the search. On a simulated device (docs/simulated.md) these are the CPU seconds of the search itself plus
the seconds that builds and calls would take on the device, so that they do not depend on what else the machine does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from felixlike import costmodel, records
from felixlike._util.deadline import Deadline
from felixlike.frontend import Task
from felixlike.hardware import kind_of, simulated
from felixlike.measure import Limits, Measurement, MeasurePool, Pool, SimulatedPool, Status
from felixlike.measure.candidate import Schedulable
from felixlike.measure.interface import Checks, Results
from felixlike.report.curves import Series, combined
from felixlike.search import Strategy
from felixlike.tuning import Budget, Event, Session, one_thread


@dataclass(slots=True)
class Trials:
    """The candidates of a search, in the order of their results.

    Attributes:
        task: Index of each candidate's task.
        latency: Seconds per call; inf for failures.
        elapsed: Seconds from the start of the search to the result.
        build: Seconds of the build.
        run: Seconds of the calls.
    """

    task: list[int] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    run: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.latency)

    def add(self, task: int, latency: float, elapsed: float, build: float = 0.0, run: float = 0.0) -> None:
        """Add a candidate."""
        self.task.append(task)
        self.latency.append(latency)
        self.elapsed.append(elapsed)
        self.build.append(build)
        self.run.append(run)

    def series(self, weights: Sequence[float]) -> Series:
        """Return Σ weight × best latency so far: inf until every task of a positive weight has a latency."""
        return combined(self.elapsed, self.task, self.latency, weights)

    def row(self) -> dict[str, list[float] | list[int | None] | list[float | None]]:
        """Return the candidates as JSON can hold them: rounded to six digits, None for failures."""
        columns = asdict(self)
        task = columns.pop("task")
        return {"task": task, **{name: [_rounded(value) for value in values] for name, values in columns.items()}}

    @classmethod
    def of(cls, row: dict[str, Any]) -> Trials:
        """Return what `row` returned."""
        return cls(
            list(row["task"]), *([_number(x) for x in row[name]] for name in ("latency", "elapsed", "build", "run"))
        )


def search(
    tasks: Sequence[Task],
    strategy: Strategy,
    *,
    space: str,
    seed: int,
    seconds: float = math.inf,
    trials: int | None = None,
    store: Path | None = None,
    done: Trials | None = None,
    observe: Callable[[Trials], None] | None = None,
) -> Trials:
    """Search tasks of one target with the shipped cost model of their kind of device.

    Args:
        tasks: The tasks.
        strategy: The search strategy, which is not shared with other runs.
        space: Name of the design space, see `SpaceName`.
        seed: Seed of the run.
        seconds: Limit in seconds; on a simulated device, in its seconds.
        trials: Limit on the number of candidates; None for no limit.
        store: Record store, with which an interrupted search resumes; None for one in memory.
        done: Candidates of the interrupted search.
        observe: Called with all candidates after each new one.

    Returns:
        The candidates, including `done`.

    Raises:
        KeyboardInterrupt: The search was interrupted before it reached a limit.
    """
    target = tasks[0].target
    timing = strategy.timing
    limits = None if timing is None else Limits(timing=timing)
    found = Trials() if done is None else done
    before = found.elapsed[-1] if found.elapsed else 0.0
    deadline = Deadline()
    pool: Pool
    clock: Callable[[Budget], float]
    if simulated(target) is None:
        pool = MeasurePool(target, reuse=False, limits=limits, deadline=deadline)
        budget_seconds = seconds if math.isfinite(seconds) else None
        clock = _real_seconds
    else:
        pool = metered = _MeteredPool(SimulatedPool(target, limits=limits))
        budget_seconds = None
        started = time.process_time()

        def clock(_: Budget) -> float:
            return before + time.process_time() - started + metered.device_seconds - metered.cpu_seconds

    reached = False

    def note(event: Event) -> None:
        nonlocal reached
        elapsed = max(before, clock(event.budget))
        if (measurement := event.measurement) is not None and elapsed <= seconds:
            right = measurement.status is Status.OK
            latency = measurement.seconds if right else math.inf
            found.add(event.index, latency, elapsed, measurement.build_seconds, measurement.run_seconds)
            if observe is not None:
                observe(found)
        if elapsed > seconds:
            reached = True
            raise KeyboardInterrupt  # ends the session after this candidate

    model = costmodel.load(kind_of(target).device, seed=seed)
    with one_thread(), records.open(store) as opened:
        try:
            session = Session(
                tasks,
                strategy=strategy,
                model=model,
                pool=pool,
                store=opened,
                seed=seed,
                space=space,
                observe=note,
                deadline=deadline,
            )
            session.run(Budget(trials=trials, seconds=budget_seconds))
        finally:
            pool.close()
    if session.interrupted and not reached:
        raise KeyboardInterrupt
    return found


def _real_seconds(budget: Budget) -> float:
    """Return the seconds of a search on a real device, those of the interrupted one included."""
    return budget.found_seconds + budget.elapsed()


class _MeteredPool:
    """A simulated pool that adds up the seconds of the device, and its own CPU seconds, which a device would not take.

    Attributes:
        device_seconds: Seconds of builds and calls on the device.
        cpu_seconds: CPU seconds of the simulation.
    """

    def __init__(self, pool: SimulatedPool) -> None:
        self._pool = pool
        self.device_seconds = self.cpu_seconds = 0.0

    @property
    def devices(self) -> frozenset[str]:
        """See `Pool.devices`."""
        return self._pool.devices

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """See `Pool.stream`."""
        results = self._pool.stream(task, candidates, verify=verify, best=best)
        while True:
            started = time.process_time()
            answer = next(results, None)
            self.cpu_seconds += time.process_time() - started
            if answer is None:
                return
            self.device_seconds += answer[1].build_seconds + answer[1].run_seconds
            yield answer

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """See `Pool.measure`."""
        return [measurement for _, measurement in self.stream(task, candidates, verify=verify, best=best)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """See `Pool.check`."""
        return self._pool.check(task, candidate)

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """See `Pool.checks`."""
        return self._pool.checks(candidates)

    def close(self) -> None:
        """See `Pool.close`."""
        self._pool.close()


def _rounded(value: float) -> float | None:
    """Return six digits of a number; None for inf and nan, which JSON lacks."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _number(value: float | None) -> float:
    """Return a number of `_rounded`."""
    return math.inf if value is None else value
