"""Stores for tests, and ways to damage them. Needs TVM for no more than the key of one small task."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from felixlike import records, tvmlib
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure.measurement import Measurement, Status
from felixlike.records import Record, make_record


def relu_task(size: int) -> Task:
    x = tvmlib.te.placeholder((size,), name="X")
    func = tvmlib.te.create_prim_func([x, tvmlib.topi.nn.relu(x)])
    return make_task(func, resolve_target("cpu"), name=f"relu{size}")


TASK, OTHER = relu_task(16), relu_task(32)


def timed(seconds: float) -> Measurement:
    return Measurement(
        Status.OK, seconds, (seconds, seconds * 1.5), spread=0.28, error=1e-7, build_seconds=0.1, run_seconds=0.02
    )


def record(measurement: Measurement, task: Task = TASK, point: tuple[int, ...] = (4, 8)) -> Record:
    return make_record(task, "sketch 0", point, measurement, seed=3)


def fill(path: Path, count: int = 60, *, first: int = 0) -> list[Record]:
    """Records of two tasks and all kinds, some with long messages; what was written, in order."""
    rng = random.Random(first)
    written = []
    with records.open(path) as store:
        for step in range(first, first + count):
            found = timed(rng.uniform(1e-4, 1e-2)) if step % 3 else Measurement(Status.CRASHED, message="why " * step)
            task = (TASK, OTHER)[step % 2]
            made = replace(record(found, task, tuple(range(step, step + 12))), time=float(step))
            store.append(task, made)
            written.append(made)
    return written


def told(found: Record) -> str:
    """Everything of a record; nan is equal to nan here."""
    return repr(found)


def flip(path: Path, places: list[tuple[int, int]]) -> None:
    """Change bytes: (place, bits)."""
    content = bytearray(path.read_bytes())
    for at, bits in places:
        content[at] ^= bits
    path.write_bytes(content)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
