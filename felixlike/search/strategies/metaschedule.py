"""Run MetaSchedule's evolutionary search with its XGBoost model as a strategy.

Inputs: a space and measurements by felixlike. Output: candidates. TVM mutates traces, extracts its own features and
trains its own model (https://arxiv.org/abs/2205.13603). As in stock MetaSchedule, the model predicts random numbers
until it has seen 100 candidates of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.costmodel import CostModel
from felixlike.errors import InvalidPoint, MissingDependency
from felixlike.search.candidate import Candidate
from felixlike.search.checks import checked
from felixlike.search.space import Space
from felixlike.search.strategy import Configurable, Key, Measured, Observations, draw
from felixlike.spaces.metaschedule import evolution


@dataclass(eq=False)
class MetaSchedule(Configurable):
    """Propose candidates by TVM's evolutionary search. Requires the package xgboost.

    Args:
        population: Number of traces.
        generations: Generations of mutations per round.
        warm_up: Measured candidates of a task before the model is used.

    Raises:
        InvalidOption: A value is out of range.
        MissingDependency: xgboost is not installed.
    """

    population: int = 512
    generations: int = 4
    warm_up: int = 100
    _searches: dict[str, _Search] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked(self, population=2, generations=0, warm_up=0)
        try:
            import xgboost  # noqa: F401
        except ImportError as error:
            raise MissingDependency("xgboost", where="strategy metaschedule", remedy="pip install xgboost") from error

    def begin(self, model: CostModel) -> None:
        """Discard all searches; see `Strategy.begin`. The run's model is not used."""
        self._searches.clear()

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates; see `Strategy.propose`. If TVM returns too few, the rest is random."""
        if space.size() <= count or not space.sketches:
            return draw(space, count, known.seen, rng, origin="random")
        candidates: dict[Key, Candidate] = {}
        for candidate in self._search(space, int(rng.integers(1, 2**30))).next(count):
            if candidate.key not in known.seen and len(candidates) < count:
                candidates[candidate.key] = candidate
        more = draw(space, count - len(candidates), known.seen | candidates.keys(), rng, origin="random")
        return [*candidates.values(), *more]

    def observe(self, space: Space, measured: Sequence[Measured], *, recalled: bool = False) -> None:
        """Pass measurements to TVM; see `Strategy.observe`."""
        if measured and space.sketches:
            self._search(space, 1).learn(measured)

    def _search(self, space: Space, seed: int) -> _Search:
        """Return the search of a task, creating it on first use."""
        if space.task.key not in self._searches:
            self._searches[space.task.key] = _Search(space, self, seed)
        return self._searches[space.task.key]


class _Search:
    """MetaSchedule's search of one task."""

    def __init__(self, space: Space, options: MetaSchedule, seed: int) -> None:
        ms = _tvm.ms
        self._space = space
        self._context = evolution(
            space.task.module,
            space.task.target,
            space.sketches[0].postprocessors,
            population=options.population,
            generations=options.generations,
            seed=seed,
        )
        self._model = ms.cost_model.XGBModel(num_warmup_samples=options.warm_up, verbose_eval=0, num_tuning_cores=1)
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(space.task.module)
        self._arguments = ms.arg_info.ArgInfo.from_prim_func(space.task.module["main"])
        self._batch = 0

    def next(self, count: int) -> list[Candidate]:
        """Return TVM's next candidates, except those that belong to none of the space's sketches."""
        if count != self._batch:  # TVM fixes the size of a batch when a search begins
            if self._batch:
                self._context.post_tuning()
            schedules = [sketch.scheduler.as_drawn() for sketch in self._space.sketches]
            self._context.pre_tuning(1_000_000, count, schedules, self._database, self._model)
            self._batch = count
        proposals = self._context.generate_measure_candidates() or ()
        candidates = (self._candidate(proposal.sch.trace) for proposal in proposals)
        return [candidate for candidate in candidates if candidate is not None]

    def _candidate(self, trace: Any) -> Candidate | None:
        """Return the candidate of a trace; None if it belongs to no sketch of the space."""
        for sketch in self._space.sketches:
            try:
                return Candidate(sketch, sketch.point(trace), float("nan"), "metaschedule")
            except InvalidPoint:
                continue
        return None

    def learn(self, measured: Sequence[Measured]) -> None:
        """Add results to TVM's database and train its model, as TVM's task scheduler does."""
        ms = _tvm.ms
        candidates, results = [], []
        for one in measured:
            right = np.isfinite(one.seconds)
            schedule = one.candidate.sketch.schedule(one.candidate.point)
            candidates.append(ms.search_strategy.MeasureCandidate(schedule, self._arguments))
            results.append(ms.runner.RunnerResult([one.seconds] if right else None, None if right else "failed"))
            times = [one.seconds if right else 1e10]
            record = ms.database.TuningRecord(
                schedule.trace, self._workload, times, self._space.task.target, self._arguments
            )
            self._database.commit_tuning_record(record)
        self._model.update(self._context, candidates, results)
        if self._batch:
            self._context.notify_runner_results(candidates, results)
