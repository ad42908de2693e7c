"""Measure speed and accuracy of candidate timing: python -m benchmarks.measuring [--candidates 16] [--only NAME].

The same random candidates of the ten subgraphs are measured one after the other by

- felixlike: `MeasurePool`, which builds, checks against float64 and times;
- a recording of a hundred batches each, on which the adaptive evaluator and fixed numbers of batches are replayed;
- a long measurement of one second each, the ground truth for all rankings (Kendall's τ-b);
- MetaSchedule: LocalBuilder (64 modules at a time, its default batch) and LocalRunner, which check nothing.

The benchmark writes docs/results/measuring.json and .md, and a plot of the time that the adaptive evaluator saves
(AdaTune §4.1), measuring.svg. With --keep FILE it appends each finished subgraph to the file and skips subgraphs that
the file already has.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import FOLDER, geometric_mean, keep, kept, write
from benchmarks.subgraphs import SUBGRAPHS
from felixlike import _tvm
from felixlike.frontend.task import make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Limits, Measurement, MeasurePool, Timing
from felixlike.measure.evaluator import better, calls_of_a_batch, evaluate, lower_quartile
from felixlike.search import Candidate
from felixlike.symbolic import Sketch, sketches

_STOCK_BATCH = 64
_FIXED = (1, 2, 3, 5, 10, 20, 50, 100)
"""Numbers of batches that the adaptive rule is compared with."""

_RECORD = Timing(spread=1e-9, min_batches=2, max_batches=_FIXED[-1], max_seconds=2.0, slow_factor=math.inf, turns=0)
_LONG = Timing(spread=1e-9, min_batches=2, max_batches=2000, max_seconds=1.0, slow_factor=math.inf, turns=0)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--only", default="", help="subgraphs whose name contains this")
    parser.add_argument("--keep", type=Path, help="a file for subgraphs that are done, to go on from")
    arguments = parser.parse_args()
    done = {row["subgraph"]: row for row in kept(arguments.keep) if row["candidates"] == arguments.candidates}
    rows = []
    for name, make in SUBGRAPHS.items():
        if arguments.only not in name:
            continue
        if name not in done:
            started = time.monotonic()
            done[name] = {**_row(name, make(), arguments.candidates), "minutes": (time.monotonic() - started) / 60}
            keep(arguments.keep, done[name])
        rows.append(done[name])
        print(_line(rows[-1]), flush=True)
        if not arguments.only:  # write the intermediate results
            command = f"measuring --candidates {arguments.candidates}"
            write("measuring", {"rows": rows}, _text(rows), command=command)
            draw(rows, FOLDER / "measuring.svg")
    if arguments.only:
        print(_text(rows))


def _row(name: str, func: Any, count: int) -> dict[str, Any]:
    task = make_task(func, resolve_target("cpu"), name=name)
    all_sketches = sketches(task)
    candidates = _candidates(all_sketches, count)
    row: dict[str, Any] = {"subgraph": name, "candidates": count}
    started = time.perf_counter()
    with MeasurePool(task.target, reuse=False) as pool:
        pool.check(task, candidates[0])  # starts the processes and computes the reference
        row["ours_start"] = time.perf_counter() - started
        started = time.perf_counter()
        ours = pool.measure(task, candidates)
        row["ours"] = (time.perf_counter() - started) / count
    row["ours_build"] = float(np.mean([m.build_seconds for m in ours]))
    row["ours_run"] = float(np.mean([m.run_seconds for m in ours]))
    recorded = _measure(task, candidates, _RECORD)
    truth = _measure(task, candidates, _LONG)  # timed between felixlike and MetaSchedule to reduce the effect of drift
    modules = [candidate.module() for candidate in candidates]
    fill = [c.module() for c in _candidates(all_sketches, _STOCK_BATCH, seed=9)][: _STOCK_BATCH - count]
    row["stock_build"], row["stock_run"], stock = _stock(task, modules, fill)
    row["stock"] = row["stock_build"] + row["stock_run"]
    row["seconds"] = {"truth": [m.seconds for m in truth], "ours": [m.seconds for m in ours], "stock": stock}
    row["batches"] = [" ".join(f"{s:.4g}" for s in m.repeats) for m in recorded]
    return row


def replay(batches: Sequence[float], timing: Timing, best: float | None = None) -> tuple[float, ...]:
    """Return the batches (seconds per call) that the evaluator would have timed, from a longer measurement's batches.

    `timing` has the batch_seconds of the longer measurement. `best` is passed to `evaluate`.
    """
    first = calls_of_a_batch(batches[:1], timing) > 1  # whether the first call only calibrates
    remaining = iter([*batches[:first], *batches])
    return evaluate(lambda _: next(remaining), timing, best=best)


def evaluators(row: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return seconds per candidate, batches per candidate and τ of the ranking for each evaluator.

    Keys are "adaptive" or a number of batches. Means are over candidates that run.
    """
    recorded = [[float(seconds) for seconds in text.split()] for text in row["batches"]]
    true_seconds = [seconds for seconds, batches in zip(row["seconds"]["truth"], recorded, strict=True) if batches]
    recorded = [batches for batches in recorded if batches]
    timing, best = Timing(), None
    batches_by_evaluator: dict[str, list[Sequence[float]]] = {"adaptive": []}
    for batches in recorded:
        batches_by_evaluator["adaptive"].append(replay(batches, timing, best))
        best = better(best, batches_by_evaluator["adaptive"][-1], timing)
    batches_by_evaluator |= {str(n): [batches[:n] for batches in recorded] for n in _FIXED}
    return {
        name: {
            "seconds": float(np.mean([sum(some) * calls_of_a_batch(some[:1], timing) for some in each])),
            "batches": float(np.mean([len(some) for some in each])),
            "tau": kendall(true_seconds, [lower_quartile(some) for some in each]),
        }
        for name, each in batches_by_evaluator.items()
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the cost and ranking quality of fixed numbers of batches and of the adaptive rule, over all subgraphs."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    overall = _overall(rows)
    adaptive = overall["adaptive"]
    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    cost, quality, both = figure.subplots(1, 3)
    for panel, value in ((cost, "seconds"), (quality, "tau")):
        panel.plot(_FIXED, [overall[str(n)][value] for n in _FIXED], "o-", color="0.5", label="fixed n")
        panel.axhline(adaptive[value], color="tab:red", linestyle="--", label="adaptive")
        panel.plot(adaptive["batches"], adaptive[value], "*", color="tab:red", markersize=12)
        panel.set(xscale="log", xlabel="batches of a candidate, n")
    cost.set(yscale="log", ylabel="seconds timed, a candidate")
    quality.set(ylabel="Kendall's τ against one second")
    both.plot(
        *zip(*((overall[str(n)]["seconds"], overall[str(n)]["tau"]) for n in _FIXED), strict=True), "o-", color="0.5"
    )
    for n in _FIXED:
        both.annotate(
            f"{n}", (overall[str(n)]["seconds"], overall[str(n)]["tau"]), (3, -11), textcoords="offset points"
        )
    both.plot(adaptive["seconds"], adaptive["tau"], "*", color="tab:red", markersize=12)
    both.set(xscale="log", xlabel="seconds timed, a candidate", ylabel="Kendall's τ against one second")
    cost.legend()
    figure.suptitle(f"Fixed numbers of batches against stopping once they agree: mean of {len(rows)} subgraphs")
    with rc_context({"svg.hashsalt": "measuring"}):
        figure.savefig(path, metadata={"Date": None})


def _overall(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return `evaluators` over all subgraphs: geometric means of seconds, means of batches and τ."""
    each = [evaluators(row) for row in rows]
    return {
        name: {
            "seconds": geometric_mean([row_evaluators[name]["seconds"] for row_evaluators in each]),
            "batches": float(np.mean([row_evaluators[name]["batches"] for row_evaluators in each])),
            "tau": float(np.mean([row_evaluators[name]["tau"] for row_evaluators in each])),
        }
        for name in each[0]
    }


def _candidates(all_sketches: Sequence[Sketch], count: int, seed: int = 3) -> list[Candidate]:
    """Return random valid points, cycling through the sketches."""
    points_a_sketch = -(-count // len(all_sketches))
    points = [(s, p) for s in all_sketches for p in s.sample(points_a_sketch, seed).tolist()]
    order = np.random.default_rng(seed).permutation(len(points))[:count]
    return [Candidate(points[i][0], tuple(points[i][1]), math.nan, "random") for i in order]


def _measure(task: Any, candidates: Sequence[Candidate], timing: Timing) -> list[Measurement]:
    with MeasurePool(task.target, limits=Limits(timing=timing, run_seconds=60.0), reuse=False) as pool:
        return pool.measure(task, candidates, verify=False)


def _stock(task: Any, modules: Sequence[Any], fill: Sequence[Any]) -> tuple[float, float, list[float]]:
    """Return seconds per candidate for building and for running, and the runner's results (inf for failures)."""
    ms = _tvm.ms
    # The workers need 20 to 30 s to import, so that most jobs would exceed the default limit of 30 s here.
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
    medians = []
    for one in built[: len(modules)]:
        result = None if one.error_msg else next(results)
        times = result.run_secs if result is not None else None
        medians.append(float(np.median([float(getattr(t, "value", t)) for t in times])) if times else math.inf)
    return build_seconds, run_seconds, medians


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Kendall's τ-b of two rankings over the pairs that are finite in both."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    signs = [(float(np.sign(a[0] - b[0])), float(np.sign(a[1] - b[1]))) for a, b in itertools.combinations(pairs, 2)]
    agreement = sum(x * y for x, y in signs)
    untied = [sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)]
    return agreement / math.sqrt(untied[0] * untied[1]) if all(untied) else math.nan


def _line(row: dict[str, Any]) -> str:
    tau = _tau(row)
    return (
        f"| {row['subgraph']} | {row['stock']:.2f} ({row['stock_build']:.2f} + {row['stock_run']:.2f}) "
        f"| {row['ours']:.3f} ({row['ours_build']:.3f}, {row['ours_run']:.3f}) | {row['ours_start']:.1f} "
        f"| {row['stock'] / row['ours']:.1f} | {tau['stock']:.3f} | {tau['ours']:.3f} | {tau['record']:.3f} |"
    )


def _tau(row: dict[str, Any]) -> dict[str, float]:
    """Return the agreement of each ranking with the truth.

    "record" uses a hundred batches and is the best that this machine allows.
    """
    seconds = row["seconds"]
    taus = {name: kendall(seconds["truth"], seconds[name]) for name in ("ours", "stock")}
    return {**taus, "record": evaluators(row)[str(_FIXED[-1])]["tau"]}


def _text(rows: list[dict[str, Any]]) -> str:
    ratios = [r["stock"] / r["ours"] for r in rows]
    taus = [_tau(r) for r in rows]
    mean = {name: np.mean([tau[name] for tau in taus]) for name in taus[0]}
    lines = [
        "Seconds a candidate, of the same random candidates. MetaSchedule: its builder's share + its runner's. Ours:",
        "wall time of a stream, float64 check included (in brackets: mean seconds of a build, several at a",
        "time, and of a run); starting processes and computing the reference, once a task, is told beside it.",
        "τ: Kendall's τ-b against one second of measuring each candidate; of the record: what a hundred batches of",
        "each reach, and so what the machine allows.",
        "",
        "| subgraph | MetaSchedule s | ours s | once s | MetaSchedule ÷ ours | its τ | our τ | τ of the record |",
        "| --- " * 8 + "|",
        *map(_line, rows),
        "",
        f"MetaSchedule ÷ ours, geometric mean: **{geometric_mean(ratios):.1f}**. Mean τ: MetaSchedule "
        f"{mean['stock']:.3f}, ours {mean['ours']:.3f}, the record {mean['record']:.3f}. Measured in "
        f"{sum(r['minutes'] for r in rows):.1f} minutes.",
        "",
        "The evaluator's rule and fixed numbers of batches (half a millisecond each, or one call if that takes",
        f"longer), replayed on the first {_FIXED[-1]} batches of each candidate (or two seconds): seconds timed,",
        "geometric mean over the subgraphs, and τ, mean and lowest.",
        "",
        "![Time and ranking quality against the number of batches](measuring.svg)",
        "",
        "| batches | seconds a candidate | τ | lowest τ |",
        "| --- " * 4 + "|",
    ]
    each = [evaluators(row) for row in rows]
    for name, overall_evaluator in _overall(rows).items():
        label = f"adaptive ({overall_evaluator['batches']:.1f} on average)" if name == "adaptive" else name
        lowest = min(e[name]["tau"] for e in each)
        lines.append(
            f"| {label} | {overall_evaluator['seconds']:.4f} | {overall_evaluator['tau']:.3f} | {lowest:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
