"""Whether a simulated CPU orders candidates as the machine at hand does: the ten subgraphs, which no store has.

In: a simulated device, how many candidates of each subgraph and space. Out: a row each. The machine should be of the
kind that the device stands for; candidates are drawn at random and timed on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.subgraphs import SUBGRAPHS
from felixlike import tvmlib
from felixlike.frontend import Task, make_task
from felixlike.hardware.simulated import PREFIX
from felixlike.measure import MeasurePool, SimulatedPool
from felixlike.search import Candidate, Space
from felixlike.training.scores import judged


@dataclass(frozen=True, slots=True)
class Row:
    """candidates: with a time on both sides.  rank: correlation.  best: latency of the best ÷ of the one that the
    simulated device takes for the best.  ratio: median of simulated ÷ measured seconds.  failed, guessed: candidates
    that failed here, and there."""

    task: str
    space: str
    candidates: int
    rank: float
    best: float
    ratio: float
    failed: int
    guessed: int


def rows(device: str, count: int) -> list[Row]:
    """Every subgraph in both spaces, where it has them."""
    target = tvmlib.Target({"kind": "llvm", "mcpu": tvmlib.host_cpu(), "num-cores": 1})
    found = []
    for name, make in SUBGRAPHS.items():
        task = make_task(make(), target, name=name)
        for space in ("own", "default"):
            candidates = _drawn(task, space, count)
            if candidates:
                found.append(_row(task, space, candidates, device))
                print(found[-1], flush=True)
    return found


def _drawn(task: Task, space: str, count: int) -> list[Candidate]:
    sketches = Space(task, space).understood
    return [
        Candidate(sketch, tuple(point), float("nan"), "random")
        for sketch in sketches
        for point in sketch.sample(-(-count // len(sketches)), 0).tolist()
    ]


def _row(task: Task, space: str, candidates: list[Candidate], device: str) -> Row:
    with SimulatedPool(PREFIX + device) as pool:
        guessed = np.array([m.seconds for m in pool.measure(task, candidates)])
    with MeasurePool(task.target, reuse=False) as pool:
        seconds = np.array([m.seconds for m in pool.measure(task, candidates, verify=False)])
    both = np.isfinite(guessed) & np.isfinite(seconds)
    quality = judged(-guessed[both], seconds[both])
    return Row(
        task=task.name,
        space=space,
        candidates=int(both.sum()),
        rank=float("nan") if quality is None else quality.rank,
        best=float("nan") if quality is None else quality.top_1,
        ratio=float(np.median(guessed[both] / seconds[both])) if both.any() else float("nan"),
        failed=int((~np.isfinite(seconds)).sum()),
        guessed=int((~np.isfinite(guessed)).sum()),
    )


def text(device: str, found: list[dict[str, Any]]) -> str:
    """A table."""
    lines = [
        f"## Beside this machine: {device}",
        "",
        "Random candidates of the ten subgraphs, which no store has, timed here on one core. Best: latency of the best "
        "÷ of what the simulated device takes for the best.",
        "",
        "| subgraph | space | candidates | rank correlation | best | simulated ÷ measured | failed here | there |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        cells = [row["task"], row["space"], row["candidates"], f"{row['rank']:.2f}", f"{row['best']:.2f}"]
        cells += [f"{row['ratio']:.2f}", row["failed"], row["guessed"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    ranks = [row["rank"] for row in found if row["rank"] == row["rank"]]
    return "\n".join([*lines, "", f"Mean rank correlation: {np.mean(ranks):.2f}."])
