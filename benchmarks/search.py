"""All strategies on equal terms: python -m benchmarks.search [--spaces own default] [--candidates 64] [--minutes 60].

Each strategy searches each of the ten subgraphs, in our space and in MetaSchedule's, for every seed, by the same
measuring; all winners of a subgraph are timed again together, in turns. Runs are kept in a folder as they end, so the
same command goes on where it was stopped, or where its minutes ended. A target "simulated:…" answers from a surrogate.
Writes docs/results/search.json, .md and .svg (with --target simulated:h100: search_simulated_h100).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, geometric_mean, keep, kept, write_for_this_machine
from benchmarks.subgraphs import SUBGRAPHS
from felixlike import Task, records
from felixlike.costmodel import CostModel, load
from felixlike.frontend import make_task
from felixlike.hardware import kind_of, resolve_target, simulated
from felixlike.measure import MeasurePool, SimulatedPool, Status
from felixlike.search import Candidate, Gradient, Space, Strategy, make_strategy
from felixlike.training.collect import open_pool
from felixlike.tuning import Budget, Event, Session, one_thread

STRATEGIES = ("gradient", "evolutionary", "adatune", "lfbo", "genetic", "random", "metaschedule")
ABLATIONS: dict[str, dict[str, Any]] = {
    "gradient, cold": {},
    "gradient without descent": {"seeds": 1, "structures": 1, "elite": 0},
    "gradient without noise": {"noise": 0.0},
    "gradient without uncertainty": {"optimism": 0.0},
}
"""Gradient search with a part of it changed; "cold": without the shipped weights."""

LOOKS = (16, 32, 64, 128)
SHARES = (0.90, 0.95, 0.99)


@dataclass(slots=True)
class Run:
    """One search.  seconds, elapsed: of each candidate, its latency (inf for failures) and when that was known, in
    seconds since the search began.  sketch, point: of the winner.  again: seconds of the winner, timed with all others'
    of its subgraph; nan until then."""

    space: str
    task: str
    seed: int
    strategy: str
    seconds: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    sketch: str = ""
    point: list[int] = field(default_factory=list)
    again: float = math.nan

    @property
    def name(self) -> tuple[str, str, int, str]:
        """What no two runs share."""
        return self.space, self.task, self.seed, self.strategy

    def best_after(self, count: int) -> float:
        """Seconds of the best of the first so many."""
        return min(self.seconds[:count], default=math.inf)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--spaces", nargs="+", default=["own", "default"])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--tasks", nargs="+", default=list(SUBGRAPHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--ablation", action="store_true", help="also gradient search with parts of it changed")
    parser.add_argument("--folder", type=Path, default=Path("out") / "search")
    arguments = parser.parse_args()
    strategies = [*arguments.strategies, *(ABLATIONS if arguments.ablation else ())]
    target = resolve_target(arguments.target)
    name = "search" if arguments.target == "cpu" else "search_" + re.sub(r"\W+", "_", arguments.target)
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
    """The runs of one subgraph in one space: those that the file has, and those that time is left for."""
    task = make_task(SUBGRAPHS[name](), target, name=name)
    runs = {run.name: run for run in (Run(**row) for row in kept(file))}
    for seed in range(arguments.seeds):
        for strategy in strategies:
            wanted = Run(space, name, seed, strategy)
            if wanted.name in runs or time.monotonic() > end:
                continue
            with _pool(target) as pool:
                _search(wanted, task, pool, arguments.candidates)
            runs[wanted.name] = wanted
            keep(file, asdict(wanted))
            print(
                f"{space} {name} {seed} {strategy}: {_us(min(wanted.seconds))} µs, {wanted.elapsed[-1]:.0f} s",
                flush=True,
            )
    if simulated(target) is not None:
        for run in runs.values():
            run.again = min(run.seconds, default=math.inf)
    elif any(math.isnan(run.again) for run in runs.values()) and time.monotonic() < end:
        _time_again(task, space, list(runs.values()))
        file.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs.values()))
    return list(runs.values())


def _pool(target: Any) -> MeasurePool | SimulatedPool:
    return SimulatedPool(target) if simulated(target) is not None else MeasurePool(target, reuse=False)


def _search(run: Run, task: Task, pool: MeasurePool | SimulatedPool, candidates: int) -> None:
    model = CostModel(seed=run.seed) if run.strategy.endswith("cold") else load(kind_of(task.target).device)
    started, spent = time.monotonic(), 0.0  # spent: what a simulated device would have taken

    def observe(event: Event) -> None:
        nonlocal spent
        if (found := event.measurement) is not None:
            spent += found.build_seconds + found.run_seconds if isinstance(pool, SimulatedPool) else 0.0
            run.seconds.append(found.seconds if found.status is Status.OK else math.inf)
            run.elapsed.append(time.monotonic() - started + spent)

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
        session.run(Budget(trials=candidates))
    best = session.states[0].best
    if best is not None:
        run.sketch, run.point = best[1].sketch.key, list(best[1].point)


def strategy_of(name: str) -> Strategy:
    """A strategy by its name in the tables."""
    return Gradient(**ABLATIONS[name]) if name in ABLATIONS else make_strategy(name)


def _time_again(task: Task, space: str, runs: list[Run]) -> None:
    """All winners in one batch, timed in turns."""
    found = Space(task, space)
    candidates: dict[Any, Candidate] = {}
    for run in runs:
        candidate = found.stored(run.sketch, tuple(run.point)) if run.sketch else None
        if candidate is not None:
            candidates[candidate.key] = candidate
    with open_pool(task.target) as pool:
        measured = pool.measure(task, list(candidates.values()))
    seconds = {key: m.seconds for key, m in zip(candidates, measured, strict=True)}
    for run in runs:
        run.again = seconds.get((run.sketch, tuple(run.point)), math.inf)


# -- tables ------------------------------------------------------------------------------------------------------------


def text(runs: Sequence[Run]) -> str:
    """For each space: how near to the best known, how soon, and who wins."""
    parts = []
    for space in dict.fromkeys(run.space for run in runs):
        members = [run for run in runs if run.space == space and run.seconds]
        parts.append(f"## space: {space}\n\n" + _space_text(members))
    return "\n\n".join(parts)


def _space_text(runs: Sequence[Run]) -> str:
    known = {task: _best_known(runs, task) for task in dict.fromkeys(run.task for run in runs)}
    strategies = list(dict.fromkeys(run.strategy for run in runs))
    most = max(len(run.seconds) for run in runs)
    looks = [look for look in LOOKS if look <= most] or [most]
    lines = [
        f"{len(known)} subgraphs, {len({run.seed for run in runs})} seeds, up to {most} candidates. Best known ÷ best "
        "found after so many candidates, geometric means; of candidates and seconds until within a share of the best "
        "known: geometric means, runs that never were count as twice their length; first: subgraphs whose mean over "
        "seeds, after so many candidates, is the best or within 3 % of it.",
        "",
        "| strategy | "
        + " | ".join(f"after {look}" for look in looks)
        + " | "
        + " | ".join(f"candidates to {share:.0%}" for share in SHARES)
        + " | "
        + " | ".join(f"s to {share:.0%}" for share in SHARES)
        + " | "
        + " | ".join(f"first at {look}" for look in looks)
        + " | winners again |",
        "| --- |" + " --- |" * (2 * len(looks) + 2 * len(SHARES) + 1),
    ]
    for strategy in strategies:
        own = [run for run in runs if run.strategy == strategy]
        quality = [f"{geometric_mean([_share(run, look, known) for run in own]):.3f}" for look in looks]
        counts = [f"{geometric_mean([_until(run, s, known)[0] for run in own]):.1f}" for s in SHARES]
        seconds = [f"{geometric_mean([_until(run, s, known)[1] for run in own]):.1f}" for s in SHARES]
        first = [f"{sum(_leads(runs, strategy, t, look) for t in known)}/{len(known)}" for look in looks]
        again = [known[r.task] / r.again for r in own if math.isfinite(r.again)]
        cells = [*quality, *counts, *seconds, *first, f"{geometric_mean(again):.3f}" if again else "–"]
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Best after {looks[-1]} candidates, µs, geometric mean over seeds (winners timed again in turns):",
        "",
    ]
    lines += [f"| subgraph | {' | '.join(strategies)} |", "| --- |" + " --- |" * len(strategies)]
    for task in known:
        cells = []
        for strategy in strategies:
            times = [r.again for r in runs if r.task == task and r.strategy == strategy and math.isfinite(r.again)]
            cells.append(_us(geometric_mean(times)) if times else "–")
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _best_known(runs: Sequence[Run], task: str) -> float:
    """The best winner of a subgraph, by the timing of all together where there is one."""
    own = [run for run in runs if run.task == task]
    again = [run.again for run in own if math.isfinite(run.again)]
    return min(again) if again else min(min(run.seconds) for run in own)


def _share(run: Run, count: int, known: dict[str, float]) -> float:
    return min(1.0, known[run.task] / max(run.best_after(count), 1e-12)) or 1e-3


def _until(run: Run, share: float, known: dict[str, float]) -> tuple[float, float]:
    """Candidates and seconds until a latency within a share of the best known was measured."""
    for place, seconds in enumerate(run.seconds):
        if known[run.task] / seconds >= share:
            return place + 1.0, run.elapsed[place]
    return 2.0 * len(run.seconds), 2.0 * run.elapsed[-1]


def _leads(runs: Sequence[Run], strategy: str, task: str, count: int) -> bool:
    """Whether a strategy is the best of a subgraph, or within 3 % of it, by the mean over seeds."""
    means = {}
    for name in {run.strategy for run in runs}:
        found = [r.best_after(count) for r in runs if r.task == task and r.strategy == name]
        found = [seconds for seconds in found if math.isfinite(seconds)]
        if found:
            means[name] = geometric_mean(found)
    return strategy in means and means[strategy] <= 1.03 * min(means.values())


def plot(runs: Sequence[Run], name: str) -> None:
    """Best known ÷ best so far over candidates, geometric mean over subgraphs and seeds, a panel a space."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    spaces = list(dict.fromkeys(run.space for run in runs if run.seconds))
    if not spaces:
        return
    figure, axes = plt.subplots(1, len(spaces), figsize=(6 * len(spaces), 4), squeeze=False)
    for axis, space in zip(axes[0], spaces, strict=True):
        members = [run for run in runs if run.space == space and run.seconds]
        known = {task: _best_known(members, task) for task in {run.task for run in members}}
        most = max(len(run.seconds) for run in members)
        for strategy in dict.fromkeys(run.strategy for run in members):
            own = [run for run in members if run.strategy == strategy]
            curve = [geometric_mean([_share(run, n, known) for run in own]) for n in range(1, most + 1)]
            axis.plot(range(1, most + 1), curve, label=strategy)
        axis.set(
            title=f"space: {space}", xlabel="measured candidates", ylabel="best known ÷ best found", ylim=(0.4, 1.02)
        )
        axis.grid(alpha=0.3)
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


if __name__ == "__main__":
    main()
