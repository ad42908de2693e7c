"""Compare search strategies: python -m benchmarks.search [--spaces own default] [--candidates 64] [--minutes 60].

Each strategy searches each of the ten subgraphs, in felixlike's and in MetaSchedule's space, with every seed and the
same measuring. All winners of a subgraph are timed again together, interleaved. Each finished run is saved in a
folder, so the same command resumes after an interruption or after its minutes ended. With a target "simulated:…" a
surrogate model answers instead of a device. The benchmark writes docs/results/search.json, .md and .svg (with
--target simulated:h100: search_simulated_h100).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.results import keep, kept, write_for_this_machine
from benchmarks.search_tables import STOCK, Run, microseconds, plot, text
from benchmarks.stock import stock
from benchmarks.subgraphs import OUTSIDE, SUBGRAPHS
from felixlike import Task, records
from felixlike.costmodel import CostModel, load
from felixlike.frontend import make_task
from felixlike.hardware import kind_of, resolve_target, simulated
from felixlike.measure import Limits, MeasurePool, SimulatedPool, Status, Timing
from felixlike.search import Candidate, Gradient, Space, Strategy, make_strategy
from felixlike.search.descent import Descent
from felixlike.training.collect import open_pool
from felixlike.tuning import Budget, Event, Session, one_thread

STRATEGIES = ("gradient", "evolutionary", "adatune", "lfbo", "genetic", "random", "metaschedule")
ABLATIONS: dict[str, dict[str, Any]] = {
    "gradient, cold": {},
    "gradient without descent": {"descent": Descent(steps=0)},
    "gradient without noise": {"noise": 0.0},
    "gradient without uncertainty": {"optimism": 0.0},
    "gradient, timed in full": {"timing": Timing(spread=1e-9, slow_factor=1e9)},
}
"""Gradient search with one part changed. "cold" has no shipped weights. "timed in full" has no adaptive evaluator:
every candidate is timed for as long as the limits allow.
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--spaces", nargs="+", default=["own", "default"])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--tasks", nargs="+", default=list(SUBGRAPHS))
    parser.add_argument("--outside", action="store_true", help="three other workloads instead, on a page of their own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--ablation", action="store_true", help="also gradient search with parts of it changed")
    parser.add_argument("--stock", type=int, default=0, help="candidates of stock MetaSchedule, in its own space")
    parser.add_argument("--folder", type=Path, default=Path("out") / "search")
    arguments = parser.parse_args()
    strategies = [*arguments.strategies, *(ABLATIONS if arguments.ablation else ())]
    target = resolve_target(arguments.target)
    name = "search" if arguments.target == "cpu" else "search_" + re.sub(r"\W+", "_", arguments.target)
    if arguments.outside:
        name, arguments.tasks = f"{name}_outside", list(OUTSIDE)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60.0 * arguments.minutes
    runs: list[Run] = []
    with one_thread():
        for space in arguments.spaces:
            for task_name in arguments.tasks:
                file = arguments.folder / f"{name}-{space}-{re.sub(r'[^a-z0-9]+', '_', task_name)}.jsonl"
                runs += _subgraph(space, task_name, target, strategies, arguments, file, end)
    write_for_this_machine(name, {"runs": [asdict(run) for run in runs]}, text(runs), command="search")
    plot(runs, name)


def _subgraph(
    space: str, name: str, target: Any, strategies: Sequence[str], arguments: argparse.Namespace, file: Path, end: float
) -> list[Run]:
    """Return the runs of one subgraph in one space: those in the file, and new ones until `end`."""
    task = make_task((SUBGRAPHS | OUTSIDE)[name](), target, name=name)
    runs = {run.name: run for run in (Run(**row) for row in kept(file))}
    if arguments.stock and space == "default" and simulated(target) is None:
        strategies = [*strategies, STOCK]
    for seed in range(arguments.seeds):
        for strategy in strategies:
            run_to_do = Run(space, name, seed, strategy)
            if run_to_do.name in runs or time.monotonic() > end:
                continue
            if strategy == STOCK:
                run_to_do.seconds, run_to_do.elapsed = stock(name, arguments.stock, seed)
            else:
                with _pool(target, run_to_do) as pool:
                    search(run_to_do, task, pool, arguments.candidates)
            runs[run_to_do.name] = run_to_do
            keep(file, asdict(run_to_do))
            best, took = min(run_to_do.seconds, default=math.inf), max(run_to_do.elapsed, default=0.0)
            print(f"{space} {name} {seed} {strategy}: {microseconds(best)} µs, {took:.0f} s", flush=True)
    if simulated(target) is not None:
        for run in runs.values():
            run.again = min(run.seconds, default=math.inf)
    elif any(math.isnan(run.again) and run.sketch for run in runs.values()) and time.monotonic() < end:
        _time_again(task, space, list(runs.values()))
        file.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs.values()))
    return list(runs.values())


def _pool(target: Any, run: Run) -> MeasurePool | SimulatedPool:
    timing = strategy_of(run.strategy).timing
    limits = None if timing is None else Limits(timing=timing)
    if simulated(target) is not None:
        return SimulatedPool(target, limits=limits)
    return MeasurePool(target, reuse=False, limits=limits)


def search(run: Run, task: Task, pool: MeasurePool | SimulatedPool, candidates: int, seconds: float = math.inf) -> None:
    """Search a task as `run` specifies, and add the result of every candidate to it."""
    model = CostModel(seed=run.seed) if run.strategy.endswith("cold") else load(kind_of(task.target).device)
    started, spent = time.monotonic(), 0.0  # spent: seconds that a simulated device would have taken

    def observe(event: Event) -> None:
        nonlocal spent
        if (measurement := event.measurement) is not None:
            spent += measurement.build_seconds + measurement.run_seconds if isinstance(pool, SimulatedPool) else 0.0
            run.seconds.append(measurement.seconds if measurement.status is Status.OK else math.inf)
            run.elapsed.append(time.monotonic() - started + spent)
            if event.candidate is not None:
                run.predicted.append(event.candidate.score)
                run.origins.append(event.candidate.origin)

    with records.open() as store:
        session = Session(
            [task],
            strategy=strategy_of(run.strategy),
            model=model,
            pool=pool,
            store=store,
            seed=run.seed,
            space=run.space,
            observe=observe,
        )
        session.run(Budget(trials=candidates, seconds=seconds if math.isfinite(seconds) else None))
    best = session.states[0].best
    if best is not None:
        run.sketch, run.point = best[1].sketch.key, list(best[1].point)


def strategy_of(name: str) -> Strategy:
    """Return a strategy by its name in the tables."""
    return Gradient(**ABLATIONS[name]) if name in ABLATIONS else make_strategy(name)


def _time_again(task: Task, space: str, runs: list[Run]) -> None:
    """Time all winners in one batch, interleaved."""
    search_space = Space(task, space)
    candidates: dict[Any, Candidate] = {}
    for run in runs:
        candidate = search_space.stored(run.sketch, tuple(run.point)) if run.sketch else None
        if candidate is not None:
            candidates[candidate.key] = candidate
    with open_pool(task.target) as pool:
        measured = pool.measure(task, list(candidates.values()))
    seconds = {key: m.seconds for key, m in zip(candidates, measured, strict=True)}
    for run in runs:
        run.again = seconds.get((run.sketch, tuple(run.point)), math.inf)


if __name__ == "__main__":
    main()
