"""Measure candidates of many workloads, for a cost model to learn from.

In: workloads, a target, a store. Out: measurements in the store, from every space. May be stopped at any time and
started again: what the store has is counted, and drawn from. All candidates of a batch wait in their processes and are
timed in turns, so that what else the machine does befalls all of them alike; the lower quartile of the turns counts.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from felixlike._util.torch_modes import default_modes
from felixlike.errors import FelixlikeError, StoreError, WorkerFailed, first_line
from felixlike.frontend import Task, import_model
from felixlike.measure import Limits, MeasurePool, Status, Timing
from felixlike.records import Store, make_record
from felixlike.search import Candidate, Observations, Space
from felixlike.symbolic import Sketch, SpaceName
from felixlike.training.drawing import at_random, near_best
from felixlike.training.samples import is_own

_BATCH = 48
"""Candidates that are timed in turns."""

_TIMING = Timing(min_batches=2, max_batches=4, max_seconds=0.1, slow_factor=6.0, turns=16, close=5.0)
"""Those more than five times slower than the best of their batch take no turn: labels stop telling them apart soon."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """candidates: of each task in all, what the store has included.  seconds: to spend in all.  space: whose sketches,
    see `SpaceName`.  seed: of what is drawn."""

    candidates: int = 140
    seconds: float = math.inf
    space: str = SpaceName.ALL
    seed: int = 0


@dataclass(slots=True)
class Collected:
    """What became of a task's candidates.  had: those that the store had already.  ended: how the new ones ended, by
    status.  best: seconds of the fastest.  problem: why there are none, or no more."""

    name: str
    had: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    best: float = math.inf
    seconds: float = 0.0
    problem: str = ""


def open_pool(target: Any, *, workers: int | None = None) -> MeasurePool:
    """The pool that `collect` measures with: batches of many candidates, timed in turns."""
    return MeasurePool(target, limits=Limits(timing=_TIMING), workers=workers, waiting=_BATCH)


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
    """Measure the tasks of each workload, a pair of its name and a function giving (module, inputs).

    observe: called with a workload's name after each of its tasks.  A workload that cannot be imported, and a task
    whose answers cannot be checked, are left out, and say so.  Raises StoreError if the store cannot be written."""
    end = time.monotonic() + wanted.seconds
    found: list[Collected] = []
    seen: set[str] = set()
    for name, make in workloads:
        try:
            module, inputs = make()
            tasks = import_model(module, inputs, target).tasks
        except FelixlikeError as error:
            found.append(Collected(name, problem=str(error)))
            observe(name, found[-1])
            continue
        for task in tasks:
            if task.key in seen:
                continue
            seen.add(task.key)
            if time.monotonic() >= end:
                return found
            result = Collected(task.name)
            started = time.monotonic()
            try:
                _collect_task(task, store, pool, wanted, end, result)
            except (StoreError, WorkerFailed):
                raise
            except Exception as error:  # hours of measuring do not end for one task's sake
                result.problem = f"{type(error).__name__}: {first_line(error)}"
            result.seconds = time.monotonic() - started
            found.append(result)
            observe(name, result)
    return found


def _collect_task(task: Task, store: Store, pool: MeasurePool, wanted: Wanted, end: float, result: Collected) -> None:
    space = Space(task, wanted.space)
    known = _known(task, store, space, pool.devices)
    result.had = len(known.seen)
    while (missing := wanted.candidates - len(known.seen)) > 0 and time.monotonic() < end:
        rng = np.random.default_rng([wanted.seed, int(task.key[:15], 16), len(known.seen)])
        batch = _batch(space.understood, known, min(_BATCH, missing), rng)
        if not batch:
            result.problem = "there are no more candidates"
            break
        _measure(task, batch, store, pool, known, result, seed=wanted.seed)
        result.best = known.best[0][0] if known.best else math.inf


def _batch(sketches: Sequence[Sketch], known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
    """The next candidates: of our own rules' sketches and of MetaSchedule's equally many, and of each half at random,
    half near the best, once there is something to be near to."""
    kinds: dict[bool, list[Sketch]] = {}
    for sketch in sketches:
        kinds.setdefault(is_own(sketch), []).append(sketch)
    found: list[Candidate] = []
    for place, members in enumerate(kinds.values()):
        share = (count - len(found)) // (len(kinds) - place)
        near = near_best(members, known, share // 2, rng)
        taken = Observations(known.seen | {candidate.key for candidate in near}, known.best)
        found += [*near, *at_random(members, taken, share - len(near), rng)]
    return found


def _measure(
    task: Task,
    batch: Sequence[Candidate],
    store: Store,
    pool: MeasurePool,
    known: Observations,
    result: Collected,
    *,
    seed: int,
) -> None:
    for place, measurement in pool.stream(task, batch):
        candidate = batch[place]
        record = make_record(task, candidate.sketch.key, candidate.point, measurement, seed=seed)
        store.append(task, record, candidate.sketch)
        result.ended[measurement.status.value] += 1
        known.add(candidate, measurement.seconds if measurement.status is Status.OK else math.inf)


def _known(task: Task, store: Store, space: Space, devices: frozenset[str]) -> Observations:
    """What the store holds of a task on these devices."""
    known = Observations()
    for device in sorted(devices):
        for brief in store.briefs(task, device=device):
            known.seen.add((brief.sketch, brief.point))
            candidate = space.stored(brief.sketch, brief.point)
            if candidate is not None and math.isfinite(brief.seconds):
                known.add(candidate, brief.seconds)
    return known
