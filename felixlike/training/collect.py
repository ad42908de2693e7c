"""Collect the training data of a cost model: measure candidates of many workloads.

The input is workloads, a target and a store. The output is measurements in the store, from every design space. A
collection may be interrupted and restarted: it counts the measurements in the store and draws new candidates near the
best of them, or as a search that has measured them. Candidates of a batch are timed interleaved, so that disturbances
affect all of them alike; a candidate's time is the lower quartile.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from felixlike._util.torch_modes import default_modes
from felixlike.errors import FelixlikeError, InvalidWeights, StoreError, WorkerFailed, first_line
from felixlike.frontend import Task, import_model
from felixlike.measure import Limits, MeasurePool, Status, Timing
from felixlike.records import Store, make_record
from felixlike.search import Candidate, Observations, Space, Strategy
from felixlike.search.strategy import Measured
from felixlike.symbolic import Sketch, SpaceName, is_own
from felixlike.training.drawing import at_random, in_shares, near_best
from felixlike.training.searches import Searches

_BATCH = 48
"""Candidates whose timing is interleaved; chosen by hand."""

_TIMING = Timing(min_batches=2, max_batches=4, max_seconds=0.1, slow_factor=6.0, turns=16, close=5.0)
"""Timing of training data; chosen by hand.

Interleaved timing leaves out candidates more than five times slower than the best of their batch, since labels hardly
distinguish such candidates."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Amount and kind of data to collect.

    Attributes:
        candidates: Number of candidates of each task, including those in the store.
        seconds: Time budget for all workloads, s.
        space: Design space of the sketches, see `SpaceName`.
        seed: Seed of the drawn candidates.
        strategy: Strategy that proposes the candidates; None for random ones and neighbours of the best.
        weights: Path of the weights of the strategy's cost model; None for the shipped ones.
    """

    candidates: int = 140
    seconds: float = math.inf
    space: str = SpaceName.ALL
    seed: int = 0
    strategy: Strategy | None = None
    weights: str | Path | None = None


@dataclass(slots=True)
class Collected:
    """Result of collecting one task's candidates.

    Attributes:
        name: Name of the task, or of the workload if it cannot be imported.
        had: Number of candidates that the store had already.
        ended: Number of new candidates by status.
        best: Seconds per call of the fastest candidate, stored ones included; inf if nothing new was measured.
        seconds: Time spent on the task, s.
        problem: Why there are no candidates, or no more; empty without a problem.
    """

    name: str
    had: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    best: float = math.inf
    seconds: float = 0.0
    problem: str = ""


def open_pool(target: Any, *, workers: int | None = None) -> MeasurePool:
    """Open a pool for `collect`, with large batches and interleaved timing.

    Args:
        target: Target of the tasks, a name or a TVM target.
        workers: Number of candidates that are built at a time; None for the default of `MeasurePool`.
    """
    return MeasurePool(target, limits=Limits(timing=_TIMING, slow_build=math.inf), workers=workers, waiting=_BATCH)


@default_modes()
def collect(
    workloads: Iterable[tuple[str, Callable[[], Any]]],
    store: Store,
    pool: MeasurePool,
    target: Any,
    wanted: Wanted,
    *,
    observe: Callable[[str, Collected], None] = lambda *_: None,
) -> list[Collected]:
    """Measure candidates of the tasks of each workload.

    A workload that cannot be imported and a task that fails, for example since its outputs cannot be verified, are
    skipped; their results state the problem.

    Args:
        workloads: Pairs of a name and a function that returns (module, inputs).
        store: Receives the measurements.
        pool: Measures them, see `open_pool`.
        target: Target of the tasks, a name or a TVM target.
        wanted: Amount and kind of data to collect.
        observe: Called with the workload's name and the result after each task.

    Returns:
        The result of each task.

    Raises:
        StoreError: The store cannot be written.
        InvalidWeights: The weights of the strategy's cost model cannot be used.
        WorkerFailed: The pool cannot start processes.
    """
    end = time.monotonic() + wanted.seconds
    results: list[Collected] = []
    seen: set[str] = set()
    for name, make in workloads:
        try:
            module, inputs = make()
            tasks = import_model(module, inputs, target).tasks
        except FelixlikeError as error:
            results.append(Collected(name, problem=str(error)))
            observe(name, results[-1])
            continue
        for task in tasks:
            if task.key in seen:
                continue
            seen.add(task.key)
            if time.monotonic() >= end:
                return results
            result = Collected(task.name)
            started = time.monotonic()
            try:
                _collect_task(task, store, pool, wanted, end, result)
            except (InvalidWeights, StoreError, WorkerFailed):
                raise
            except Exception as error:  # one task must not end hours of measuring
                result.problem = f"{type(error).__name__}: {first_line(error)}"
            result.seconds = time.monotonic() - started
            results.append(result)
            observe(name, result)
    return results


def _collect_task(task: Task, store: Store, pool: MeasurePool, wanted: Wanted, end: float, result: Collected) -> None:
    """Measure batches of a task's candidates until there are enough or the time is up."""
    space = Space(task, wanted.space)
    known = _known(task, store, space, pool.devices)
    result.had = len(known.seen)
    searches = None
    if wanted.strategy is not None and result.had < wanted.candidates:
        searches = Searches(space, wanted.strategy, wanted.weights, known)
    while (missing := wanted.candidates - len(known.seen)) > 0 and time.monotonic() < end:
        rng = np.random.default_rng([wanted.seed, int(task.key[:15], 16), len(known.seen)])
        count = min(_BATCH, missing)
        batch = searches.propose(known, count, rng) if searches else _batch(space.symbolic, known, count, rng)
        if not batch:
            result.problem = "no new candidates are left"
            break
        measured = _measure(task, batch, store, pool, known, result, seed=wanted.seed)
        if searches:
            searches.observe(measured)
        result.best = known.best[0][0] if known.best else math.inf


def _batch(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """Return the next candidates: equally many from our own space and from MetaSchedule's.

    Half of each are random, half near the best measured ones; all are random before there are any."""
    kinds: dict[bool, list[Sketch]] = {}
    for sketch in sketches:
        kinds.setdefault(is_own(sketch), []).append(sketch)

    def drawn(members: Sequence[Sketch], share: int) -> list[Candidate]:
        near = near_best(members, known, share // 2, rng)
        taken = Observations(known.seen | {candidate.key for candidate in near}, known.best)
        return [*near, *at_random(members, taken, share - len(near), rng)]

    return in_shares(count, list(kinds.values()), drawn)


def _measure(
    task: Task,
    batch: Sequence[Candidate],
    store: Store,
    pool: MeasurePool,
    known: Observations,
    result: Collected,
    *,
    seed: int,
) -> list[Measured]:
    """Measure a batch, store the records and update `known` and `result`; return the measurements."""
    measured: list[Measured] = []
    for place, measurement in pool.stream(task, batch):
        candidate = batch[place]
        record = make_record(task, candidate.sketch.key, candidate.point, measurement, seed=seed)
        store.append(task, record, candidate.sketch)
        result.ended[measurement.status.value] += 1
        measured.append(Measured(candidate, measurement.seconds if measurement.status is Status.OK else math.inf))
        known.add(candidate, measured[-1].seconds)
    return measured


def _known(task: Task, store: Store, space: Space, devices: frozenset[str]) -> Observations:
    """Return the store's measurements of a task on these devices."""
    known = Observations()
    for device in sorted(devices):
        for brief in store.briefs(task, device=device):
            known.seen.add((brief.sketch, brief.point))
            candidate = space.stored(brief.sketch, brief.point)
            if candidate is not None and math.isfinite(brief.seconds):
                known.add(candidate, brief.seconds)
    return known
