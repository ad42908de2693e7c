"""Whether a simulated CPU orders candidates as a real one does: python -m benchmarks.simulated_real [--device zen5].

Random candidates of the ten subgraphs, which no store has, timed on one core of this machine, which should be of the
kind that the device stands for. Writes docs/results/simulated_real.json and .md, a chapter for each kind of machine.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.results import write_for_this_machine
from benchmarks.subgraphs import SUBGRAPHS
from felixlike import _tvm
from felixlike.frontend import Task, make_task
from felixlike.hardware import SIMULATED
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


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="zen5", choices=[name for name, d in SIMULATED.items() if d.kind == "llvm"])
    parser.add_argument("--candidates", type=int, default=24, help="of each subgraph and space")
    arguments = parser.parse_args()
    found = _rows(arguments.device, arguments.candidates)
    data = {"device": SIMULATED[arguments.device].device, "rows": [asdict(row) for row in found]}
    write_for_this_machine("simulated_real", data, _text(SIMULATED[arguments.device].device, found))


def _rows(device: str, count: int) -> list[Row]:
    """Every subgraph in both spaces, where it has them."""
    target = _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": 1})
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


def _text(device: str, found: list[Row]) -> str:
    lines = [
        f"Beside {device}: random candidates of the ten subgraphs, which no store has, timed on one core. Best: time "
        "of the best ÷ of what the simulated device takes for the best.",
        "",
        "| subgraph | space | candidates | rank correlation | best | simulated ÷ measured | failed here | there |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        cells = [row.task, row.space, row.candidates, f"{row.rank:.2f}", f"{row.best:.2f}", f"{row.ratio:.2f}"]
        lines.append(f"| {' | '.join(map(str, [*cells, row.failed, row.guessed]))} |")
    for space in ("default", "own"):
        ranks = [row.rank for row in found if row.space == space and not np.isnan(row.rank)]
        lines += ["", f"Mean rank correlation in the {space} space: {np.mean(ranks):.2f}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
