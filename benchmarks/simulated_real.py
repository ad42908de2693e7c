"""Compare the ranking of a simulated CPU with a real one: python -m benchmarks.simulated_real [--device zen5].

Random candidates of the ten subgraphs, which no store contains, are timed on one core of the host, which should be of
the kind that the device simulates. The benchmark writes docs/results/simulated_real.json and .md, with a chapter for
each kind of machine.
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
    """Results of one subgraph in one space.

    `candidates` have a time on both sides. `rank` is the rank correlation. `best` is the best latency ÷ the latency
    of the simulated device's choice. `ratio` is the median of simulated ÷ measured seconds. `failed` and `guessed`
    count failures on the host and on the simulated device.
    """

    task: str
    space: str
    candidates: int
    rank: float
    best: float
    ratio: float
    failed: int
    guessed: int


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="zen5", choices=[name for name, d in SIMULATED.items() if d.kind == "llvm"])
    parser.add_argument("--candidates", type=int, default=24, help="of each subgraph and space")
    arguments = parser.parse_args()
    rows = _rows(arguments.device, arguments.candidates)
    data = {"device": SIMULATED[arguments.device].device, "rows": [asdict(row) for row in rows]}
    write_for_this_machine("simulated_real", data, _text(SIMULATED[arguments.device].device, rows))


def _rows(device: str, count: int) -> list[Row]:
    """Return a row for every subgraph and each space that has sketches."""
    target = _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu(), "num-cores": 1})
    rows = []
    for name, make in SUBGRAPHS.items():
        task = make_task(make(), target, name=name)
        for space in ("own", "default"):
            candidates = _drawn(task, space, count)
            if candidates:
                rows.append(_row(task, space, candidates, device))
                print(rows[-1], flush=True)
    return rows


def _drawn(task: Task, space: str, count: int) -> list[Candidate]:
    sketches = Space(task, space).symbolic
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


def _text(device: str, rows: list[Row]) -> str:
    lines = [
        f"Beside {device}: random candidates of the ten subgraphs, which no store has, timed on one core. Best: time "
        "of the best ÷ of what the simulated device takes for the best.",
        "",
        "| subgraph | space | candidates | rank correlation | best | simulated ÷ measured | failed here | there |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row.task, row.space, row.candidates, f"{row.rank:.2f}", f"{row.best:.2f}", f"{row.ratio:.2f}"]
        lines.append(f"| {' | '.join(map(str, [*cells, row.failed, row.guessed]))} |")
    for space in ("default", "own"):
        ranks = [row.rank for row in rows if row.space == space and not np.isnan(row.rank)]
        lines += ["", f"Mean rank correlation in the {space} space: {np.mean(ranks):.2f}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
