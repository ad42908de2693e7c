"""Do one run of `over_time` in this process: python -m felixlike.bench.over_time_run FOLDER.

Input: a folder with job.json. Outputs in that folder: tasks.json, and a line in candidates.jsonl for each candidate as
soon as it is measured. In a folder with results of an interrupted run the search continues.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from felixlike import _tvm
from felixlike.api import extract_tasks
from felixlike.bench.over_time import SPACES, STOCK, Job, candidates_of, model_of
from felixlike.bench.searches import Trials, search
from felixlike.frontend import Task
from felixlike.search import make_strategy

_NO_LIMIT = 1_000_000_000
"""Trials of stock MetaSchedule, which its time limits."""

_WORKER_SECONDS = 600.0
"""Time limit of TVM's workers, s, which includes their import of TVM. On a busy machine, TVM's 30 s are not enough for
this import, so that every build fails. No candidate comes near either limit. Chosen by hand."""


def main() -> int:
    """Do the run. Return 0, or 130 if it was interrupted."""
    place = Path(sys.argv[1])
    job = Job(**json.loads((place / "job.json").read_text()))
    try:
        tasks = _tasks(job, place)
        done = Trials()
        for task, latency, elapsed in candidates_of(place):
            done.add(task, latency, elapsed)
        with (place / "candidates.jsonl").open("a") as lines:
            lines.write("\n" if lines.tell() else "")  # a crash may have cut the last line short
            if job.strategy == STOCK:
                _stock(job, tasks, place, done, lines)
            else:
                _ours(job, tasks, place, done, lines)
    except KeyboardInterrupt:
        return 130
    return 0


def _tasks(job: Job, place: Path) -> Sequence[Task]:
    """Return the network's tasks, and write their descriptions."""
    with (place / "starts").open("a") as starts:
        starts.write(f"{time.time()}\n")
    model, inputs = model_of(job)
    tasks = extract_tasks(model, inputs, job.target)
    facts = [{"name": task.name, "calls": task.weight, "flops": task.flops} for task in tasks]
    (place / "tasks.json").write_text(json.dumps(facts))
    return tasks


def _ours(job: Job, tasks: Sequence[Task], place: Path, done: Trials, lines: TextIO) -> None:
    """Search with one of our strategies."""

    def note(trials: Trials) -> None:
        _note(lines, trials.task[-1], trials.latency[-1], trials.elapsed[-1])

    search(
        tasks,
        make_strategy(job.strategy),
        space=SPACES[job.space],
        seed=job.seed,
        seconds=job.seconds,
        store=place / "store.sqlite",
        done=done,
        observe=note,
    )


def _stock(job: Job, tasks: Sequence[Task], place: Path, done: Trials, lines: TextIO, **options: Any) -> None:
    """Do what `tune_relax` does after it has split a network, on our tasks, until the parent ends the process.

    TVM's database in the folder holds the candidates of an interrupted run. Options are those of TVM's `tune_tasks`."""
    ms = _tvm.ms
    extracted = [
        ms.ExtractedTask(task.name, task.module, task.target, [task.module], int(task.weight)) for task in tasks
    ]
    folder = str(place / "tvm")
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(extracted, folder, seed=job.seed + 1)
    # The clock starts here, because TVM's import of its tensor intrinsics above takes many seconds.
    before = done.elapsed[-1] if done.elapsed else 0.0
    started = time.monotonic() - before
    (place / "started").write_text(str(started))

    @_tvm.derived_object
    class Note(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc,name-defined]
        def apply(self, scheduler: Any, task: int, *results: Any) -> None:  # the last argument has the runner's results
            for result in results[-1]:
                times = sorted(float(seconds) for seconds in result.run_secs or ())
                latency = times[len(times) // 2] if times else math.inf
                _note(lines, int(task), latency, time.monotonic() - started)

    defaults = {
        "builder": ms.builder.LocalBuilder(max_workers=contexts[0].num_threads, timeout_sec=_WORKER_SECONDS),
        "runner": ms.runner.LocalRunner(timeout_sec=_WORKER_SECONDS),
        "max_trials_global": _NO_LIMIT,
    }
    ms.tune.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=folder,
        measure_callbacks=[
            ms.measure_callback.AddToDatabase(),
            ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
            Note(),
        ],
        **(defaults | options),
    )


def _note(lines: TextIO, task: int, latency: float, elapsed: float) -> None:
    """Write a candidate, null for the latency of a failure."""
    lines.write(json.dumps([task, latency if math.isfinite(latency) else None, elapsed]) + "\n")
    lines.flush()


if __name__ == "__main__":
    sys.exit(main())
