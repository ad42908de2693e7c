"""How fast and how truly candidates are measured: python -m benchmarks.measuring [--candidates 16] [--only NAME].

On the ten subgraphs, the same random candidates are measured by

- ours: `MeasurePool`, building, checking against float64 and timing;
- MetaSchedule: its LocalBuilder (64 modules at a time, its default batch) and LocalRunner, which check nothing;
- a long measurement of one second each, the truth that both rankings are compared with (Kendall's τ-b);
- ours with a fixed number of batches instead of the adaptive evaluator (AdaTune §4.1).

Writes docs/results/measuring.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.results import geometric_mean, write
from benchmarks.subgraphs import SUBGRAPHS
from felixlike import tvmlib
from felixlike.frontend.task import make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Limits, Measurement, MeasurePool, Timing
from felixlike.search import Candidate
from felixlike.symbolic import Sketch, sketches

_STOCK_BATCH = 64
_LONG = Timing(batch_seconds=0.05, spread=1e-9, min_batches=8, max_batches=20, max_seconds=1.0, slow_factor=math.inf)
_FIXED = {
    f"{n} batch{'es' if n > 1 else ''}": Timing(spread=1e-9, min_batches=n, max_batches=n, max_seconds=60.0)
    for n in (1, 3, 10)
}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--only", default="", help="subgraphs whose name contains this")
    arguments = parser.parse_args()
    rows = []
    for name, make in SUBGRAPHS.items():
        if arguments.only in name:
            rows.append(_row(name, make(), arguments.candidates))
            if not arguments.only:  # what there is so far
                command = f"measuring --candidates {arguments.candidates}"
                write("measuring", {"rows": rows}, _text(rows), command=command)
    if arguments.only:
        print(_text(rows))


def _row(name: str, func: Any, count: int) -> dict[str, Any]:
    task = make_task(func, resolve_target("cpu"), name=name)
    found = sketches(task)
    candidates = _candidates(found, count)
    row: dict[str, Any] = {"subgraph": name, "candidates": count}
    seconds: dict[str, list[float]] = {}
    with MeasurePool(task.target, reuse=False) as pool:
        pool.check(task, candidates[0])  # starts the processes and computes the reference, once a task
        started = time.perf_counter()
        ours = pool.measure(task, candidates)
        row["ours"] = (time.perf_counter() - started) / count
        row["ours_build"], row["ours_run"] = _means(ours)
        seconds["ours"] = [m.seconds for m in ours]
    row["evaluators"] = {"adaptive": {"run_seconds": row["ours_run"]}}
    truth = _measure(task, candidates, _LONG)
    for label, timing in _FIXED.items():
        measured = _measure(task, candidates, timing)
        seconds[label] = [m.seconds for m in measured]
        row["evaluators"][label] = {"run_seconds": _means(measured)[1]}
    modules = [candidate.module() for candidate in candidates]
    fill = [c.module() for c in _candidates(found, _STOCK_BATCH, seed=9)][: _STOCK_BATCH - count]
    row["stock_build"], row["stock_run"], seconds["stock"] = _stock(task, modules, fill)
    row["stock"] = row["stock_build"] + row["stock_run"]
    right = [m.seconds for m in truth]
    row["seconds"] = {"truth": right, **seconds}
    row["tau"] = {label: kendall(right, values) for label, values in seconds.items()}
    row["evaluators"]["adaptive"]["tau"] = row["tau"]["ours"]
    for label in _FIXED:
        row["evaluators"][label]["tau"] = row["tau"][label]
    return row


def _candidates(found: Sequence[Sketch], count: int, seed: int = 3) -> list[Candidate]:
    """Random valid points, the sketches in turn."""
    share = -(-count // len(found))
    points = [(s, p) for s in found for p in s.sample(share, seed).tolist()]
    order = np.random.default_rng(seed).permutation(len(points))[:count]
    return [Candidate(points[i][0], tuple(points[i][1]), math.nan, "random") for i in order]


def _measure(task: Any, candidates: Sequence[Candidate], timing: Timing) -> list[Measurement]:
    with MeasurePool(task.target, limits=Limits(timing=timing, run_seconds=60.0), reuse=False) as pool:
        return pool.measure(task, candidates, verify=False)


def _means(measured: Sequence[Measurement]) -> tuple[float, float]:
    """Mean seconds for building and for running."""
    return (
        float(np.mean([m.build_seconds for m in measured])),
        float(np.mean([m.run_seconds for m in measured])),
    )


def _stock(task: Any, modules: Sequence[Any], fill: Sequence[Any]) -> tuple[float, float, list[float]]:
    """Seconds a candidate for building and for running, and what the runner found (inf for failures)."""
    ms = tvmlib.ms
    # Its workers import for 20 to 30 s: with the default limit of 30 s a job, here, most jobs would only time out.
    builder, runner = ms.builder.LocalBuilder(timeout_sec=120.0), ms.runner.LocalRunner()
    info = ms.arg_info.ArgInfo.from_entry_func(task.module, remove_preproc=False)
    inputs = [ms.builder.BuilderInput(module, task.target) for module in (*modules, *fill)]
    started = time.perf_counter()
    built = builder.build(inputs)
    build_seconds = (time.perf_counter() - started) / len(inputs)
    runs = [ms.runner.RunnerInput(b.artifact_path, "cpu", info) for b in built[: len(modules)] if not b.error_msg]
    started = time.perf_counter()
    results = iter([future.result() for future in runner.run(runs)])
    run_seconds = (time.perf_counter() - started) / max(1, len(runs))
    found = []
    for one in built[: len(modules)]:
        result = None if one.error_msg else next(results)
        times = result.run_secs if result is not None else None
        found.append(float(np.median([float(getattr(t, "value", t)) for t in times])) if times else math.inf)
    return build_seconds, run_seconds, found


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's τ-b of two rankings, of the pairs that are finite in both."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    signs = [(float(np.sign(a[0] - b[0])), float(np.sign(a[1] - b[1]))) for a, b in itertools.combinations(pairs, 2)]
    agreement = sum(x * y for x, y in signs)
    untied = [sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)]
    return agreement / math.sqrt(untied[0] * untied[1]) if all(untied) else math.nan


def _line(row: dict[str, Any]) -> str:
    tau = row["tau"]
    return (
        f"| {row['subgraph']} | {row['stock']:.2f} ({row['stock_build']:.2f} + {row['stock_run']:.2f}) "
        f"| {row['ours']:.3f} ({row['ours_build']:.3f}, {row['ours_run']:.3f}) | {row['stock'] / row['ours']:.1f} "
        f"| {tau['stock']:.3f} | {tau['ours']:.3f} |"
    )


def _text(rows: list[dict[str, Any]]) -> str:
    ratios = [r["stock"] / r["ours"] for r in rows]
    lines = [
        "Seconds a candidate, of the same random candidates. MetaSchedule: its builder's share + its runner's. Ours:",
        "wall time of a stream, float64 check included (in brackets: mean seconds of a build, several at a",
        "time, and of a run). τ: Kendall's τ-b against one second of measuring each candidate.",
        "",
        "| subgraph | MetaSchedule s | ours s | MetaSchedule ÷ ours | its τ | our τ |",
        "| --- " * 6 + "|",
        *map(_line, rows),
        "",
        f"MetaSchedule ÷ ours, geometric mean: **{geometric_mean(ratios):.1f}**. "
        f"Mean τ: MetaSchedule {np.mean([r['tau']['stock'] for r in rows]):.3f}, "
        f"ours {np.mean([r['tau']['ours'] for r in rows]):.3f}.",
        "",
        "The evaluator: mean seconds of a run (copying the inputs and the first call included) and τ, with the",
        "adaptive rule and with a fixed number of batches of one millisecond (or one call, if that takes longer).",
        "",
        "| subgraph | " + " | ".join(f"{e} s | τ" for e in rows[0]["evaluators"]) + " |",
        "| --- " * (1 + 2 * len(rows[0]["evaluators"])) + "|",
    ]
    for row in rows:
        cells = [f"{e['run_seconds']:.3f} | {e['tau']:.3f}" for e in row["evaluators"].values()]
        lines.append(f"| {row['subgraph']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
