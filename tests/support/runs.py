"""Tuning runs to be ended, disturbed and started again: python -m support.runs STORE.

In: a store's path. Out: which candidates a run said it has measured, each once it is in the store, and how it ended.
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
"""What a clock may say, s since 1970."""


@cache
def _task() -> Task:
    from support.operators import matmul

    return make_task(matmul(32, 48, 40), resolve_target("cpu"), name="matmul")


def tune(store: Path, *, seed: int = 0, trials: int = TRIALS) -> None:
    """A run that prints what it has measured, a line each: one "started", keys, one "ended"."""

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
            space="default",  # whose points are many, for a task of some microseconds
            observe=observe,
        )
        print("started", flush=True)
        session.run(Budget(trials=trials, seconds=600.0))
    print("ended", flush=True)


class Run:
    """A run in a copy of this process, which has everything imported.  clock: "jumps" for one that does."""

    def __init__(self, store: Path, *, clock: str = "", **options: Any) -> None:
        _task()
        reading, writing = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(reading)
            _here(writing, clock, store, options)
        os.close(writing)
        self._said = open(reading, encoding="utf-8")  # noqa: SIM115  closed by `end`
        self._lines: list[str] = []
        if self._said.readline() != "started\n":
            raise RuntimeError(f"a run did not start; it left with {os.waitpid(self._process, 0)[1]}")

    def wait(self, results: int) -> None:
        """Until it has reported so many results more, or has ended."""
        self._lines += itertools.islice(self._said, results)

    def kill(self) -> None:
        """End it at once."""
        os.kill(self._process, signal.SIGKILL)

    def end(self) -> tuple[set[str], bool]:
        """Wait for its end: what it has said to have measured, and whether it came to its end by itself."""
        with self._said:
            self._lines += self._said
        os.waitpid(self._process, 0)
        return said(self._lines)


def said(lines: Iterable[str]) -> tuple[set[str], bool]:
    """What a run's words mean: candidates measured; whether it came to its end."""
    words = [line.removesuffix("\n") for line in lines]
    return {word for word in words if word.startswith("[") and word.endswith("]]")}, "ended" in words


def stored(store: Path) -> list[str]:
    """The candidates whose measurements a store holds, as runs name them."""
    if not store.exists():
        return []
    with records.open(store) as opened:
        return [json.dumps((r.sketch, r.point)) for r in opened.measurements(_task())]


def _here(writing: int, clock: str, store: Path, options: Any) -> NoReturn:
    """The copy's part: run, say so, leave without any clean-up of the parent's state."""
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
