"""Record stores with known rows, ways to damage their files, and a check for records that were never written."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from felixlike import _tvm, records
from felixlike.errors import StoreError
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure.measurement import Measurement, Status
from felixlike.records import Record, make_record


def relu_task(size: int) -> Task:
    x = _tvm.te.placeholder((size,), name="X")
    func = _tvm.te.create_prim_func([x, _tvm.topi.nn.relu(x)])
    return make_task(func, resolve_target("cpu"), name=f"relu{size}")


TASK, OTHER = relu_task(16), relu_task(32)


def timed(seconds: float) -> Measurement:
    return Measurement(
        Status.OK, seconds, (seconds, seconds * 1.5), spread=0.28, error=1e-7, build_seconds=0.1, run_seconds=0.02
    )


def record(measurement: Measurement, task: Task = TASK, point: tuple[int, ...] = (4, 8)) -> Record:
    return make_record(task, "sketch 0", point, measurement, seed=3)


def fill(path: Path, count: int = 60, *, first: int = 0) -> list[Record]:
    """Append records of two tasks and all statuses, some with long messages, and return them in order."""
    rng = random.Random(first)
    written = []
    with records.open(path) as store:
        for step in range(first, first + count):
            measurement = (
                timed(rng.uniform(1e-4, 1e-2)) if step % 3 else Measurement(Status.CRASHED, message="why " * step)
            )
            task = (TASK, OTHER)[step % 2]
            entry = replace(record(measurement, task, tuple(range(step, step + 12))), time=float(step))
            store.append(task, entry)
            written.append(entry)
    return written


def told(entry: Record) -> str:
    """Return all fields of a record as text, so that NaN compares equal to NaN."""
    return repr(entry)


def newer(path: Path) -> None:
    """Create a store with the version number of a later felixlike."""
    records.open(path).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()


def flip(path: Path, places: list[tuple[int, int]]) -> None:
    """Invert bits of bytes.

    Args:
        path: the file.
        places: (offset of the byte, mask of its bits)."""
    content = bytearray(path.read_bytes())
    for at, bits in places:
        content[at] ^= bits
    path.write_bytes(content)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip_at_random(path: Path, rng: random.Random) -> None:
    """Flip one, three or forty random bits."""
    length = path.stat().st_size
    flip(path, [(rng.randrange(length), 1 << rng.randrange(8)) for _ in range(rng.choice((1, 1, 3, 40)))])


def after(damage: Callable[[Path], None], original: Path, written: list[Record], path: Path) -> str:
    """Damage a copy of a store made by `fill`, and return what `look` returns for the copy."""
    shutil.copy(original, path)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    damage(path)
    return look(path, written)


def look(path: Path, written: list[Record]) -> str:
    """Use a store made by `fill` in every way. Return "refused", "works", or "wrong" if it returned unwritten data."""
    written_texts = {told(r) for r in written}
    tasks = {(t.name, t.flops, str(t.target)) for t in (TASK, OTHER)}
    try:
        with records.open(path) as store:
            entries = [*store.measurements(), *(r for t in (TASK, OTHER) if (r := store.best(t)) is not None)]
            true = (
                {told(r) for r in entries} <= written_texts
                and {(s.name, s.flops, s.target) for s in store.summary()} <= tasks
                and {(w.name, w.target) for w in store.workloads()} <= {(name, target) for name, _, target in tasks}
                and store.count() <= len(written)
            )
            store.append(TASK, record(timed(1.0), point=(-1,)))
    except StoreError:
        return "refused"
    return "works" if true else "wrong"
