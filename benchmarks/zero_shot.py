"""Nothing measured: python -m benchmarks.zero_shot [--only NAME] [--runs 3] [--stores FOLDER].

`optimize(model, inputs, trials=0)` on ResNet-18, MobileNet-v2 (1×3×224×224) and a BERT encoder of 2 layers: seconds of
the call in fresh processes that have PyTorch and the model loaded, with an empty cache and with what the first run kept
there; and latency of a call beside that of the model tuned with a round a task, which are 16 candidates where there are
so many, interleaved, each in a process of its own. Writes docs/results/zero_shot.json and .md.
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
    """See the module's docstring."""
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
    found = {row["network"]: row for row in earlier}
    for name in NAMES:
        if arguments.only in (None, name):
            found[name] = _measure(name, arguments.runs, arguments.stores)
    rows = [found[name] for name in NAMES if name in found]
    write_for_this_machine("zero_shot", {"rows": rows}, _text(rows))


def _measure(name: str, runs: int, stores: Path | None) -> dict[str, Any]:
    from support import models

    import felixlike as fx
    from felixlike.bench.processes import Sides
    from felixlike.bench.sides import saved

    make = getattr(models, name)
    with tempfile.TemporaryDirectory(prefix="felixlike-zero-") as folder:
        files = {side: Path(folder) / f"{side}.flx" for side in ("predicted", "tuned")}
        times = [_apart(name, files["predicted"], Path(folder) / f"cache{run}") for run in range(runs)]
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
        "latency": {side: found.seconds for side, found in latencies.items()},
        "quartiles": {side: [found.low, found.high] for side, found in latencies.items()},
    }


def _apart(name: str, file: Path, cache: Path) -> tuple[float, float]:
    """Seconds of the call in a fresh process, with an empty cache and then with what is in it."""
    command = (sys.executable, "-m", "benchmarks.zero_shot", "--call", name, str(file))
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    said = [subprocess.run(command, env=environment, capture_output=True, check=True, text=True) for _ in range(2)]
    cold, again = (float(json.loads(run.stdout.splitlines()[-1])) for run in said)
    return cold, again


def _call(name: str, file: str) -> None:
    """Time one call, keep the model, print the seconds."""
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
