"""Measure optimization without measurements: python -m benchmarks.zero_shot [--only NAME] [--runs 3] [--stores
FOLDER].

`optimize(model, inputs, trials=0)` runs on ResNet-18, MobileNet-v2 (1×3×224×224) and a BERT encoder of 2 layers. The
benchmark times the call in fresh processes that have loaded PyTorch and the model, with an empty cache and with the
cache of the first run. It compares the latency with that of the model tuned for one round per task, up to 16
candidates each, interleaved, each side in its own process. It writes docs/results/zero_shot.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

NAMES = ("resnet18", "mobilenet_v2", "bert")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="how often each call is timed")
    parser.add_argument("--only", choices=NAMES, help="measure this one again; the rows of the others stay")
    parser.add_argument("--stores", type=Path, help="where measurements are kept, for runs that are cut short")
    parser.add_argument("--call", nargs=2, metavar=("NAME", "FILE"), help="for its own processes: time one call")
    arguments = parser.parse_args()
    if arguments.call:
        _call(*arguments.call)
        return

    from benchmarks.results import of_this_machine, write_for_this_machine

    earlier = of_this_machine("zero_shot").get("rows", []) if arguments.only else []
    rows_by_name = {row["network"]: row for row in earlier}
    for name in NAMES:
        if arguments.only in (None, name):
            rows_by_name[name] = _measure(name, arguments.runs, arguments.stores)
    rows = [rows_by_name[name] for name in NAMES if name in rows_by_name]
    write_for_this_machine("zero_shot", {"rows": rows}, _text(rows))


def _measure(name: str, runs: int, stores: Path | None) -> dict[str, Any]:
    from support import models

    import felixlike as fx
    from felixlike.bench.sides import saved
    from felixlike.measure.sides.processes import Sides

    make = getattr(models, name)
    with tempfile.TemporaryDirectory(prefix="felixlike-zero-") as folder:
        files = {side: Path(folder) / f"{side}.flx" for side in ("predicted", "tuned")}
        times = [_time_in_new_processes(name, files["predicted"], Path(folder) / f"cache{run}") for run in range(runs)]
        model, inputs = make()
        tasks = len(fx.extract_tasks(model, inputs))
        store = None if stores is None else stores / f"{name}.sqlite"
        tuned = fx.optimize(model, inputs, rounds=tasks, store=store, progress=False)
        tuned.save(files["tuned"])
        with Sides() as sides:
            latencies = sides.compare({side: partial(saved, path, make) for side, path in files.items()})
        error = fx.load(files["predicted"]).report.error
    return {
        "network": name,
        "tasks": tasks,
        "cold": [cold for cold, _ in times],
        "again": [again for _, again in times],
        "trials": tuned.report.trials + tuned.report.recalled,
        "error": error,
        "latency": {side: timing.seconds for side, timing in latencies.items()},
        "quartiles": {side: [timing.low, timing.high] for side, timing in latencies.items()},
    }


def _time_in_new_processes(name: str, file: Path, cache: Path) -> tuple[float, float]:
    """Return the seconds of the call in a new process with an empty cache, and in another one with the filled cache."""
    command = (sys.executable, "-m", "benchmarks.zero_shot", "--call", name, str(file))
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    completed = [subprocess.run(command, env=environment, capture_output=True, check=True, text=True) for _ in range(2)]
    cold, cached = (float(json.loads(run.stdout.splitlines()[-1])) for run in completed)
    return cold, cached


def _call(name: str, file: str) -> None:
    """Time one call, save the model, and print the seconds."""
    from support import models

    import felixlike as fx

    model, inputs = getattr(models, name)()
    started = time.perf_counter()
    fast = fx.optimize(model, inputs, trials=0, progress=False)
    seconds = time.perf_counter() - started
    fast.save(file)
    print(json.dumps(seconds))


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [
        "`trials=0`: schedules are predicted and checked, none is measured. Seconds of the whole call, import and",
        "final check included, medians of fresh processes that have PyTorch and the model loaded: with an empty cache,",
        "and again. Milliseconds of a call of the model, medians of interleaved turns; speed: tuned ÷ predicted.",
        "",
        "| network | tasks | first s | again s | trials | predicted ms | tuned ms | speed | max error |",
        "| --- " * 9 + "|",
    ]
    for row in rows:
        predicted, tuned = (row["latency"][side] for side in ("predicted", "tuned"))
        lines.append(
            f"| {row['network']} | {row['tasks']} | {statistics.median(row['cold']):.1f} "
            f"| {statistics.median(row['again']):.1f} | {row['trials']} | {predicted * 1e3:.3g} "
            f"| {tuned * 1e3:.3g} | {tuned / predicted:.2f} | {row['error']:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
