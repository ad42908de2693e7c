"""Redraw AdaTune's figures 2 to 4 and 6 to 11: python -m benchmarks.adatune [--seeds 15] [--steps 500] [--minutes 60].

The variants of the paper's ablation (docs/strategies.md) search operators and whole networks on simulated devices, so
results do not depend on the load of the machine: seconds are the CPU seconds of the search plus the predicted seconds
of builds and calls. Figure 3 uses the times of micro-batches that the stores in data/ hold. Each finished run is saved
in a folder, so the same command resumes after an interruption or after its minutes ended, and --page only writes the
page. It needs xgboost. The benchmark writes docs/results/adatune.json, .md and pictures, or adatune_networks.json if
`--operators` names none.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from support import operators as op

from benchmarks.adatune_page import (
    ADATUNE,
    BASELINE,
    EPSILONS,
    VARIANTS,
    Run,
    comparable,
    draw,
    text,
    variation_rows,
)
from benchmarks.results import keep, kept, write
from felixlike import extract_tasks
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.bench.searches import search
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.search import Strategy, make_strategy
from felixlike.search.strategies.adatune import AdaTune

OPERATORS: dict[str, tuple[str, Callable[[], Any]]] = {
    "conv2d, CPU": ("zen5", partial(op.conv2d, 64, 56, 64)),
    "batch matmul, CPU": ("zen5", partial(op.batch_matmul, 12, 128, 64, 128)),
    "conv2d, GPU": ("h100", partial(op.conv2d, 64, 56, 64)),
    "batch matmul, GPU": ("h100", partial(op.batch_matmul, 12, 128, 64, 128)),
}
"""Simulated device and PrimFunc of the operators: a convolution of ResNet-18, the attention of a transformer."""

MODELS = ("resnet18", "vgg16", "squeezenet", "bert_base")
"""Networks of figures 2 and 7 to 9, on the simulated CPU."""

_MORE = 3
"""Candidates of AdaTune for one of the other variants, so that they are compared at equal seconds: AdaTune's cost about
a third where calls are long."""

_CPU = "zen5"
_SPACE = "default"


@dataclass(frozen=True, slots=True)
class Job:
    """A run to do.

    Attributes:
        workload: Name of the operator or the network.
        variant: Name of the variant.
        seed: Seed of the run.
        candidates: Number of candidates per task.
        steps: Annealing steps of a round.
    """

    workload: str
    variant: str
    seed: int
    candidates: int
    steps: int


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=15, help="of each operator, default 15")
    parser.add_argument("--network-seeds", type=int, help="of each network, default as many as --seeds")
    parser.add_argument("--candidates", type=int, default=256, help="of each operator, default 256")
    parser.add_argument("--network-candidates", type=int, default=128, help="of each task of a network, default 128")
    parser.add_argument("--steps", type=int, default=500, help="annealing steps of a round, default 500 as published")
    parser.add_argument("--operators", nargs="*", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--networks", nargs="*", choices=[*NETWORKS, *SMALL], default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--page", action="store_true", help="measure nothing, only write the page")
    parser.add_argument("--folder", type=Path, default=Path("out") / "adatune")
    arguments = parser.parse_args()
    if arguments.networks and arguments.network_candidates < (least := make_strategy(ADATUNE).trials_per_round or 1):
        parser.error(f"--network-candidates: fewer than a round of {least} leave tasks without a schedule")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs = comparable(measured(list(_jobs(arguments)), arguments.folder, 0.0 if arguments.page else arguments.minutes))
    name = "adatune" if arguments.operators else "adatune_networks"
    batches = _batches(arguments.folder / "variation.json") if arguments.operators else []
    names = draw(runs, batches, name)
    data = {"runs": [run.brief() for run in runs], "variation": batches}
    write(name, data, text(runs, batches, names), command=_command(arguments))


def _command(arguments: argparse.Namespace) -> str:
    """Return the command that reproduces the runs."""
    names = ["seeds", "candidates", "steps"]
    if arguments.networks:
        names += ["network_seeds", "network_candidates"]
    options = [f"--{name.replace('_', '-')} {getattr(arguments, name)}" for name in names]
    networks = ["--networks", *arguments.networks] if arguments.networks != list(MODELS) else []
    operators = [] if arguments.operators else ["--operators"]
    return " ".join(["adatune", *options, *operators, *networks])


def _jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """Yield the runs: every variant of a seed before the next seed, so that the page is complete after any seed."""
    networks = arguments.seeds if arguments.network_seeds is None else arguments.network_seeds
    for seed in range(max(arguments.seeds, networks)):
        for name in arguments.operators if seed < arguments.seeds else ():
            for variant in (*VARIANTS, *EPSILONS):
                count = arguments.candidates * (_MORE if variant == ADATUNE else 1)
                yield Job(name, variant, seed, count, arguments.steps)
        for name in arguments.networks if seed < networks else ():
            for variant in (BASELINE, ADATUNE):
                yield Job(name, variant, seed, arguments.network_candidates, arguments.steps)


def measured(jobs: Sequence[Job], folder: Path, minutes: float = math.inf) -> list[Run]:
    """Return the runs of jobs: those in the folder, and new ones until the minutes are over.

    A run in the folder counts for a job with equal numbers of candidates and steps."""
    end = time.monotonic() + 60.0 * minutes
    runs: list[Run] = []
    files: dict[Path, dict[Job, Run]] = {}
    for job in jobs:
        file = folder / f"{re.sub(r'[^a-z0-9]+', '_', job.workload.lower())}.jsonl"
        if file not in files:
            files[file] = {_job(row): Run.of(row) for row in kept(file)}
        if job not in files[file] and time.monotonic() < end:
            run = _run(job)
            files[file][job] = run
            keep(file, {**run.row(), "candidates": job.candidates, "steps": job.steps})
            print(
                f"{job.workload} {job.variant} {job.seed}: {run.series.best * 1e6:.1f} µs, {run.series.seconds:.0f} s",
                flush=True,
            )
        if job in files[file]:
            runs.append(files[file][job])
    return runs


def _job(row: dict[str, Any]) -> Job:
    """Return the job of a row in a file."""
    return Job(row["workload"], row["variant"], row["seed"], row["candidates"], row["steps"])


def _run(job: Job) -> Run:
    """Search as a job says."""
    tasks = _tasks(job.workload)
    strategy = strategy_of(job.variant, job.steps)
    trials = search(tasks, strategy, space=_SPACE, seed=job.seed, trials=job.candidates * len(tasks))
    return Run(
        job.workload,
        job.variant,
        job.seed,
        trials,
        names=tuple(task.name for task in tasks),
        weights=tuple(task.weight for task in tasks),
        flops=sum(task.weight * task.flops for task in tasks),
        is_network=job.workload not in OPERATORS,
    )


def strategy_of(variant: str, steps: int) -> Strategy:
    """Return a variant of the ablation, or the baseline with another ε."""
    strategy = make_strategy(BASELINE if variant in EPSILONS else variant)
    assert isinstance(strategy, AdaTune)
    return replace(strategy, steps=steps, epsilon=EPSILONS.get(variant, strategy.epsilon))


@cache
def _tasks(workload: str) -> tuple[Task, ...]:
    """Return the tasks of an operator or a network that have a space to search."""
    if workload in OPERATORS:
        device, make = OPERATORS[workload]
        return (make_task(make(), resolve_target(f"simulated:{device}"), name=workload),)
    model, inputs = (NETWORKS | SMALL)[workload]()
    return extract_tasks(model, inputs, f"simulated:{_CPU}")


def _batches(file: Path) -> list[dict[str, Any]]:
    """Return the rows of figure 3, computed once, because opening the stores takes a minute."""
    if not file.exists():
        file.write_text(json.dumps(variation_rows()))
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


if __name__ == "__main__":
    main()
