"""Tuning runs in separate processes, to be killed, disturbed and resumed: python -m support.runs STORE.

Input: the path of a record store. Output: the candidates that a run has reported as measured, each after it is in the
store, and whether the run completed.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from felixlike import records
from felixlike.costmodel import CostModel
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure import Limits, MeasurePool, Timing
from felixlike.search import make_strategy
from felixlike.tuning import Budget, Event, Session

TRIALS = 48

_JUMPS = (4e9, 0.0, -5.0, 1.7e9, 1e300)
"""Values that the clock returns, in seconds since 1970."""


@cache
def _task() -> Task:
    from support.operators import matmul

    return make_task(matmul(32, 48, 40), resolve_target("cpu"), name="matmul")


def tune(store: Path, *, seed: int = 0, trials: int = TRIALS) -> None:
    """Run a tuning session that prints "started", the key of each measured candidate, and "ended", one per line."""

    def observe(event: Event) -> None:
        if event.measurement is not None and event.candidate is not None:
            print(json.dumps(event.candidate.key), flush=True)

    task = _task()
    quick = Limits(timing=Timing(batch_seconds=1e-4, max_batches=3))
    with MeasurePool(task.target, limits=quick) as pool, records.open(store) as opened:
        session = Session(
            [task],
            strategy=make_strategy("random"),
            model=CostModel(),
            pool=pool,
            store=opened,
            seed=seed,
            space="default",  # which has many points, although the task takes a few microseconds
            observe=observe,
        )
        print("started", flush=True)
        session.run(Budget(trials=trials, seconds=600.0))
    print("ended", flush=True)


class Run:
    """A run in a fork of this process, which has imported everything already.

    Args:
        store: path of the record store.
        clock: "jumps" for a clock that jumps, "" for the real one."""

    def __init__(self, store: Path, *, clock: str = "", **options: Any) -> None:
        _task()
        reading, writing = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(reading)
            _run_in_child(writing, clock, store, options)
        os.close(writing)
        self._output = open(reading, encoding="utf-8")  # noqa: SIM115  closed by `end`
        self._lines: list[str] = []
        if self._output.readline() != "started\n":
            raise RuntimeError(f"a run did not start; it left with {os.waitpid(self._process, 0)[1]}")

    def wait(self, results: int) -> None:
        """Wait until the run has reported this number of further results or has ended."""
        self._lines += itertools.islice(self._output, results)

    def kill(self) -> None:
        """Kill the run."""
        os.kill(self._process, signal.SIGKILL)

    def end(self) -> tuple[set[str], bool]:
        """Wait until the process ends, and return what `said` returns for its output."""
        with self._output:
            self._lines += self._output
        os.waitpid(self._process, 0)
        return said(self._lines)


def said(lines: Iterable[str]) -> tuple[set[str], bool]:
    """Parse the output of a run: the candidates it has reported as measured, and whether it completed."""
    words = [line.removesuffix("\n") for line in lines]
    return {word for word in words if word.startswith("[") and word.endswith("]]")}, "ended" in words


def stored(store: Path) -> list[str]:
    """Return the keys of the candidates whose measurements are in a store, in the format that runs print."""
    if not store.exists():
        return []
    with records.open(store) as opened:
        return [json.dumps((r.sketch, r.point)) for r in opened.measurements(_task())]


def _run_in_child(writing: int, clock: str, store: Path, options: Any) -> NoReturn:
    """Run in the forked process, and exit without clean-up of the parent's state."""
    try:
        os.dup2(writing, sys.stdout.fileno())
        if clock:
            time.time = itertools.cycle(_JUMPS).__next__
        tune(store, **options)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    tune(Path(sys.argv[1]))
