"""Measure candidates of the training workloads: python -m benchmarks.collect STORE [--points 40] [--only NAME].

Random valid points of every sketch that the search would choose from. What a model is to learn is which of a task's
candidates is faster, and on a shared machine the minutes differ by more than the candidates do. So all candidates of a
task are called in turns, a few tenths of a millisecond each, a hundred times over, and what counts is the tenth of
each one's calls that were disturbed least. They run on one core: nothing but the kernel is in the times then, and how
evenly cores share the work is a matter of arithmetic.

May be stopped and started again: tasks that the store has are not measured anew.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from felixlike import tvmlib

_ROUNDS = 100
_TURN = 3e-4
"""Seconds of calls in one turn of a candidate."""

_UNDISTURBED = 0.1
"""Share of the turns that count."""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--points", type=int, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.workload:
        _collect(arguments.workload, arguments.store, arguments.points)
        return
    from benchmarks.training_workloads import workloads

    for name, _, _ in workloads():
        if arguments.only in name:
            command = [sys.executable, "-m", "benchmarks.collect", arguments.store, "--workload", name]
            subprocess.run([*command, "--points", str(arguments.points)], check=False)


def _collect(wanted: str, path: str, count: int) -> None:
    """Measure the tasks of one workload, in a process of its own: a wrong kernel may take it down."""
    os.environ["TVM_NUM_THREADS"] = "1"
    from benchmarks.training_workloads import one_core, workloads
    from felixlike import records
    from felixlike.frontend import import_model

    with records.open(path) as store:
        for name, module, inputs in workloads():
            if name == wanted:
                for task in import_model(module, inputs, one_core()).tasks:
                    _collect_task(name, task, store, count)
                return


def _collect_task(name: str, task: Any, store: Any, count: int) -> None:
    from felixlike.measure import Measurement, Status
    from felixlike.records import make_record
    from felixlike.search import Candidate, Space

    if any(True for _ in store.measurements(task)):
        return
    started = time.monotonic()
    sketches = [s for s in Space(task).sketches if s.understood]
    for sketch in sketches:
        points = sorted({tuple(p) for p in sketch.sample(count // len(sketches) + 1, 1).tolist()})
        candidates = [Candidate(sketch, point, float("nan"), "random") for point in points]
        best = float("inf")
        for candidate, turns in zip(candidates, _timed(task, candidates), strict=True):
            if turns:
                lowest = sorted(turns)[: max(1, round(_UNDISTURBED * len(turns)))]
                measured = Measurement(Status.OK, lowest[-1], tuple(lowest), error=None)
                store.append(task, make_record(task, sketch.key, candidate.point, measured, seed=1), sketch)
                best = min(best, lowest[-1])
        rate = task.flops / best / 1e9
        print(
            f"{name}: {task.name} {len(points)} points, {best * 1e6:.1f} us {rate:.1f} GFLOPS, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )


def _timed(task: Any, candidates: Sequence[Any]) -> list[list[float]]:
    """Seconds a call in each turn; none for those that cannot be built."""
    import numpy as np

    from felixlike.errors import FelixlikeError
    from felixlike.measure.arguments import arguments
    from felixlike.measure.trial_process import build

    device = tvmlib.device_of(task.target)
    rng = np.random.default_rng(0)
    tensors = []
    for argument in arguments(task.module["main"]):
        floats = argument.dtype.startswith("float")
        contents = rng.standard_normal(argument.shape) if floats else np.zeros(argument.shape)
        tensors.append(tvmlib.runtime.tensor(contents.astype(argument.dtype), device))
    sides: list[Any] = []
    for candidate in candidates:
        try:
            built, _ = build(str(tvmlib.ir.save_json(candidate.module())), task.target)
        except (FelixlikeError, *tvmlib.TVM_ERRORS) as error:
            print(f"{candidate.point}: {error}", flush=True)
            sides.append(None)
            continue
        given = built.arguments(tensors, device)
        call = built.library["main"]
        call(*given)
        started = time.perf_counter()
        call(*given)
        calls = max(1, round(_TURN / (time.perf_counter() - started)))
        sides.append((built.library.time_evaluator("main", device, number=calls), given))
    turns: list[list[float]] = [[] for _ in sides]
    for _ in range(_ROUNDS):
        for found, side in zip(turns, sides, strict=True):
            if side is not None:
                found.append(float(side[0](*side[1]).results[0]))
    return turns


if __name__ == "__main__":
    main()
