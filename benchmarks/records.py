"""Measure a record store with a million measurements: python -m benchmarks.records [--measurements 1000000].

The benchmark creates a store in a temporary folder with 400 tasks, one of which has a quarter of all measurements,
and uses it in separate processes. It writes docs/results/records.json and .md.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from felixlike import records
from felixlike.frontend.task import Task
from felixlike.measure.measurement import Measurement, Status
from felixlike.records.schema import sealed, to_row

TASKS = 400
TARGET = '{"kind":"llvm","tag":"","keys":["cpu"],"num-cores":2,"mcpu":"emeraldrapids"}'
DEVICE = "a processor of the benchmark"
LIMITS = {"open": 0.2, "best": 0.005}
"""Required maximum seconds."""

MOST_MIB = 200


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=int, default=1_000_000)
    parser.add_argument("--use", metavar="STORE", help="measure on this store, print JSON")
    arguments = parser.parse_args()
    if arguments.use:
        print(json.dumps(_use(Path(arguments.use))))
        return
    from benchmarks.results import write

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        started = time.monotonic()
        _make(path, arguments.measurements)
        made = time.monotonic() - started
        size = path.stat().st_size
        runs = [_in_a_process(path) for _ in range(5)]
    rows = {name: [run[name] for run in runs] for name in runs[0]}
    data = {"measurements": arguments.measurements, "tasks": TASKS, "bytes": size, "made_seconds": made, "rows": rows}
    write("records", data, _text(data, rows))


def task(number: int) -> Task:
    """Return a task of the store, without a module."""
    return Task(f"task {number}", None, TARGET, 1.0, 1e6, f"{number:032x}")


def _rows(count: int) -> Iterator[tuple[Any, ...]]:
    """Yield measurements: eight tile factors, three repeats, one in ten failed, a quarter of them of the first task."""
    rng = random.Random(0)
    for step in range(count):
        number = 0 if step % 4 == 0 else rng.randrange(TASKS)
        seconds = rng.lognormvariate(-7.0, 1.0)
        measurement = Measurement(
            Status.OK, seconds, (seconds, seconds * 1.01, seconds * 0.99), 0.008, 1e-7, "", rng.random(), 0.3
        )
        if step % 10 == 0:
            measurement = Measurement(Status.TIMEOUT, message="it was still running when its time was up")
        point = tuple(rng.choice((1, 2, 4, 8, 16, 32)) for _ in range(12))
        record = records.Record(
            task=task(number).key,
            sketch=f"{number:08x}{step % 3:08x}",
            point=point,
            measurement=measurement,
            device=DEVICE,
            target=TARGET,
            tvm="0.27.0.post1",
            felixlike="0.1.0",
            seed=0,
            time=1.7e9 + step,
        )
        yield sealed(to_row(record))


def _make(path: Path, count: int) -> None:
    with records.open(path) as store:
        with store.file.transaction():
            for number in range(TASKS):
                t = task(number)
                store.add_rows("workloads", [sealed((t.key, t.name, "m" * 20_000, TARGET, t.flops))])
        rows = _rows(count)
        while some := [row for _, row in zip(range(50_000), rows, strict=False)]:
            with store.file.transaction():
                store.add_rows("measurements", some)


def _in_a_process(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.records", "--use", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds_by_use: dict[str, float] = json.loads(done.stdout)
    return seconds_by_use


def _use(path: Path) -> dict[str, float]:
    """Return the seconds of each use, and the process's peak memory in MiB."""
    results: dict[str, float] = {}

    def timed(call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    started = time.perf_counter()
    store = records.open(path)
    results["open"] = time.perf_counter() - started
    results["best, first of all"] = timed(lambda: store.best(task(0).key, device=DEVICE))
    rng = random.Random(time.time_ns())
    keys = [task(rng.randrange(TASKS)).key for _ in range(500)]
    lookups = [timed(partial(store.best, key, device=DEVICE)) for key in keys]
    results["best"], results["best, slowest of 500"] = statistics.median(lookups), max(lookups)
    record = store.best(task(7).key, device=DEVICE)
    assert record is not None
    fresh = [replace(record, time=rng.random()) for _ in range(50)]
    results["append"] = statistics.median(timed(partial(_append, store, r)) for r in fresh)
    results["recall of a task"] = timed(lambda: sum(1 for _ in store.briefs(task(7).key, device=DEVICE)))
    results["summary"] = timed(store.summary)
    results["recall of a quarter of all"] = timed(lambda: sum(1 for _ in store.briefs(task(0).key, device=DEVICE)))
    store.close()
    results["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return results


def _append(store: records.Store, record: records.Record) -> None:
    with store.file.transaction():
        store.add_rows("measurements", [sealed(to_row(record))])


def _text(data: dict[str, Any], rows: dict[str, list[float]]) -> str:
    lines = [
        f"{data['measurements']:,} measurements of {data['tasks']} tasks, one of which has a quarter of them; "
        f"{data['bytes'] / 2**20:.0f} MiB. Each use in five fresh processes: the median of these, and the slowest. "
        "`best` and `append` are medians of 500 and 50 in each process; appending waits for the disk.",
        "",
        "| use | median | slowest | wanted |",
        "| --- | --- | --- | --- |",
    ]
    for name, values in rows.items():
        if name == "MiB":
            lines.append(
                f"| peak memory | {statistics.median(values):.0f} MiB | {max(values):.0f} MiB | {MOST_MIB} MiB |"
            )
            continue
        limit = f"{LIMITS[name] * 1e3:.0f} ms" if name in LIMITS else ""
        lines.append(f"| {name} | {statistics.median(values) * 1e3:.2f} ms | {max(values) * 1e3:.2f} ms | {limit} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
