"""Time programs at sizes within a run's limits, and keep every timing in the run's store.

Input: an operator with dynamic sizes, programs and sizes, a store and a budget. Output: seconds. Each size is a task of
its own in the store, whose records name the program. A timing that the store has is not repeated, so that a run that
was killed continues where it stopped.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from felixlike import _tvm, records
from felixlike.dynamic.memory import size_at
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.ukernel import Floats
from felixlike.frontend import Task, make_task
from felixlike.frontend.constants import noted_constants
from felixlike.measure import Measurement, Status
from felixlike.records.record import UKERNELS
from felixlike.report import RunLog
from felixlike.tuning.budget import Budget

P = TypeVar("P")

Point = tuple[int, ...]
"""The numbers that define a program, as a record keeps them."""


@dataclass(slots=True)
class Timings:
    """The timings of a run.

    Attributes:
        store: The record store.
        budget: The run's limits. Timings that the store has count, as in all runs.
        seed: Seed of the run, for its records.
        say: Called with a line for each operator that is timed.
        log: The run's log, which gets each new measurement.
        known: Measurements by the task's key and the point, as far as they were needed.
        left_out: Number of timings that the limits left no room for.
    """

    store: records.Store = field(default_factory=records.Store)
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    log: RunLog = field(default_factory=partial(RunLog, None))
    known: dict[str, dict[Point, Measurement]] = field(default_factory=dict)
    left_out: int = 0

    def take(
        self, task: Task, device: str, points: Sequence[Point], measure: Callable[[list[int]], Sequence[Measurement]]
    ) -> list[Measurement | None]:
        """Return the measurement of each point: the stored one, or one that is made and stored now.

        Args:
            task: The operator at fixed sizes.
            device: Name of the device that measures.
            points: The programs.
            measure: Measures the programs at some indices.

        Returns:
            The measurements; None for those that the limits leave no room for.
        """
        known = self._stored(task, device, points)
        missing = [n for n, point in enumerate(points) if point not in known and point not in points[:n]]
        new = missing[: self._left()]
        self.left_out += len(missing) - len(new)
        if new:
            measured = measure(new)
            made = [
                records.make_record(task, UKERNELS, points[n], replace(measurement, device=device), seed=self.seed)
                for n, measurement in zip(new, measured, strict=True)
            ]
            self.store.extend(task, made)
            for n, measurement in zip(new, measured, strict=True):
                self.budget.spent_trials += 1
                self.log.measured(
                    measurement,
                    task=task.name,
                    workload=task.key,
                    trials=self.budget.spent_trials,
                    sketch=UKERNELS,
                    point=list(points[n]),
                )
            known.update(zip([points[n] for n in new], measured, strict=True))
        return [known.get(point) for point in points]

    def _stored(self, task: Task, device: str, points: Sequence[Point]) -> dict[Point, Measurement]:
        """Return what is known of a task; count stored measurements when they are used for the first time."""
        if task.key not in self.known:
            self.known[task.key] = {}
        known = self.known[task.key]
        wanted = set(points) - set(known)
        numbers = {brief.point: brief.id for brief in self.store.briefs(task, device=device) if brief.point in wanted}
        for record in self.store.numbered(list(numbers.values())):
            known[record.point] = record.measurement
        self.budget.find(trials=len(numbers))
        return known

    def _left(self) -> int | None:
        """Return how many programs may still be measured, None for any number."""
        if self.budget.seconds_left() <= 0:
            return 0
        trials = self.budget.trials_left()
        return None if math.isinf(trials) else int(trials)


class Bench(ABC, Generic[P]):
    """Times the programs of one operator.

    Args:
        operator: The operator.
        target: The TVM target.
        timings: The timings of the run; None for new ones without limits.
        name: Name of the operator in the store.
    """

    def __init__(self, operator: Operator, target: Any, timings: Timings | None = None, *, name: str = "operator"):
        self.operator, self.target, self.name = operator, target, name
        self.timings = Timings() if timings is None else timings
        self._used: set[tuple[tuple[int, ...], Point]] = set()
        self._tasks: dict[tuple[int, ...], Task] = {}

    @abstractmethod
    def measure(self, task: Task, sizes: tuple[int, ...], programs: Sequence[P]) -> Sequence[Measurement]:
        """Measure programs at the sizes of a task, in turns."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Name of the device that measures."""

    @abstractmethod
    def point(self, program: P) -> Point:
        """Return the numbers that define a program."""

    @property
    def used(self) -> int:
        """Number of timings that were asked for and exist."""
        return len(self._used)

    def fits(self, sizes: tuple[int, ...]) -> bool:
        """Return whether programs can be timed at these sizes: no tensor is empty, as one of T - 1 rows at T = 1."""
        return all(size > 0 for shape in self.shapes_at(sizes) for size in shape)

    def shapes_at(self, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shapes of all parameters."""
        values = dict(zip(self.operator.symbols, sizes, strict=True))
        return [tuple(size_at(size, values) for size in p.shape) for p in self.operator.func.params]

    def note(self, program: P, measurement: Measurement) -> None:
        """Take note of a measurement, stored or new."""

    def seconds(self, trials: Sequence[tuple[P, tuple[int, ...]]]) -> Floats:
        """Return the seconds of each (program, sizes of the symbols): float64[trials].

        Those that failed, that the limits left out, or whose tensors are too large are ∞.
        """
        times = np.full(len(trials), np.inf)
        for sizes in dict.fromkeys(sizes for _, sizes in trials):
            if not self.fits(sizes):
                continue
            indices = [n for n, trial in enumerate(trials) if trial[1] == sizes]
            programs, task = [trials[n][0] for n in indices], self.task(sizes)
            points = list(map(self.point, programs))
            answers = self.timings.take(task, self.device, points, partial(self._chosen, sizes, programs))
            for n, program, answer in zip(indices, programs, answers, strict=True):
                if answer is not None:
                    self.note(program, answer)
                    times[n] = answer.seconds if answer.status is Status.OK else math.inf
                    self._used.add((sizes, self.point(program)))
        return times

    def _chosen(self, sizes: tuple[int, ...], programs: Sequence[P], indices: list[int]) -> Sequence[Measurement]:
        """Measure some of the programs."""
        return self.measure(self.task(sizes), sizes, [programs[n] for n in indices])

    def task(self, sizes: tuple[int, ...]) -> Task:
        """Return the operator at fixed sizes as a task. Its key differs from that of a model with fixed sizes."""
        if sizes not in self._tasks:
            symbols = self.operator.symbols
            func = _tvm.substituted(self.operator.func, dict(zip(symbols, sizes, strict=True)))
            named = ", ".join(f"{symbol.name}={size}" for symbol, size in zip(symbols, sizes, strict=True))
            task = make_task(func, self.target, name=f"{self.name}, {named}", constants=noted_constants(func))
            text = f"{UKERNELS} {_tvm.structural_hash(self.operator.func)} {self.target} {sizes}"
            self._tasks[sizes] = replace(task, key=hashlib.sha256(text.encode()).hexdigest()[:32])
        return self._tasks[sizes]
