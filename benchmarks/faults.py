"""What must be survived: python -m benchmarks.faults [--kills 200].

- kill -9 of the whole tuning process at random moments: every measurement that was reported is in the store, and the
  run, started again until it ends, has measured exactly the candidates of an undisturbed one;
- candidates that crash, hang, take all memory, print megabytes, answer NaN or something wrong: told as such, never
  chosen, and the next candidate is measured as if nothing had happened.

Writes docs/results/faults.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.results import write

_TRIALS = 48


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    arguments = parser.parse_args()
    rows = [_kills(arguments.kills), *_candidates()]
    lines = ["| fault | tries | survived | what happened |", "| --- | --- | --- | --- |"]
    lines += [f"| {r['fault']} | {r['tries']} | {r['survived']} | {r['outcome']} |" for r in rows]
    write("faults", {"rows": rows}, "\n".join(lines), command=f"faults --kills {arguments.kills}")


def _task() -> Any:
    from benchmarks.operators import matmul
    from felixlike.frontend.task import make_task
    from felixlike.hardware import resolve_target

    return make_task(matmul(32, 48, 40), resolve_target("cpu"), name="matmul")


def _run(store: Path) -> None:
    """A tuning run that says, a line each, what has been measured, once it is in the store."""
    from felixlike import records
    from felixlike.costmodel import CostModel
    from felixlike.measure import Limits, MeasurePool, Timing
    from felixlike.search import make_strategy
    from felixlike.tuning import Budget, Event, Session

    def observe(event: Event) -> None:
        if event.measurement is not None and event.candidate is not None:
            print(json.dumps(event.candidate.key), flush=True)

    task = _task()
    quick = Limits(timing=Timing(batch_seconds=1e-4, max_batches=3))
    with MeasurePool(task.target, limits=quick) as pool, records.open(store) as opened:
        session = Session(
            [task], strategy=make_strategy("random"), model=CostModel(), pool=pool, store=opened, observe=observe
        )
        print("started", flush=True)
        session.run(Budget(trials=_TRIALS))
    print("ended", flush=True)


def _kills(wanted: int) -> dict[str, Any]:
    """Runs that are killed at random moments, again and again on one store, until they end by themselves."""
    lost = different = kills = runs = 0
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="felixlike-faults-") as folder:
        undisturbed = Path(folder) / "undisturbed.sqlite"
        started = time.monotonic()
        _spawn(undisturbed, None, rng)
        duration = time.monotonic() - started
        expected = set(_stored(undisturbed))
        assert len(expected) == _TRIALS
        while kills < wanted:
            runs += 1
            store = Path(folder) / f"{runs}.sqlite"
            reported: set[str] = set()
            while True:
                said, killed = _spawn(store, duration / 2 if kills < wanted else None, rng)
                kills += killed
                reported |= said
                lost += len(reported - set(_stored(store)))
                if not killed:
                    break
            different += set(_stored(store)) != expected
            print(f"{kills} kills, {runs} runs, {lost} lost, {different} different", flush=True)
    good = lost == 0 and different == 0
    outcome = f"{lost} reported measurements lost; {different} of {runs} resumed runs measured other candidates"
    return {"fault": "kill -9 of the run", "tries": kills, "survived": kills if good else 0, "outcome": outcome}


def _spawn(store: Path, within: float | None, rng: random.Random) -> tuple[set[str], bool]:
    """One run, in a copy of this process that has everything imported.

    within: it is killed at a random moment of so many seconds after it has started; None: it is not. Returns what it
    reported as measured, and whether it was killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _run_here(store, writing)
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        if said.readline() != "started\n":
            raise RuntimeError(f"a run did not start; it left with {os.waitpid(process, 0)[1]}")
        if within is not None:
            time.sleep(rng.uniform(0.0, within))
            os.kill(process, signal.SIGKILL)
        lines = said.read().splitlines()
    os.waitpid(process, 0)
    whole = {line for line in lines if line.startswith("[") and line.endswith("]]")}
    return {json.dumps(json.loads(line)) for line in whole}, "ended" not in lines


def _run_here(store: Path, writing: int) -> NoReturn:
    """The copy's part: run, say so, leave without any clean-up of the parent's state."""
    try:
        os.dup2(writing, sys.stdout.fileno())
        _run(store)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _stored(store: Path) -> list[str]:
    """What a store holds of the task."""
    from felixlike import records

    if not store.exists():
        return []
    with records.open(store) as opened:
        return [json.dumps((r.sketch, r.point)) for r in opened.measurements(_task())]


def _candidates() -> list[dict[str, Any]]:
    """Each bad candidate between two good ones."""
    from benchmarks.oracles import faulty
    from felixlike.measure import Limits, MeasurePool, Status

    rows = []
    task = faulty.task_of(faulty.matmul(), "matmul")
    limits = Limits(run_seconds=2.0, memory_bytes=2**29)
    with MeasurePool(task.target, limits=limits, reuse=False) as pool:
        for fault, (candidate, expected) in faulty.candidates().items():
            started = time.monotonic()
            before, bad, after = pool.measure(task, [faulty.tiled(), candidate, faulty.tiled()])
            good = before.status is after.status is Status.OK and bad.status is expected
            outcome = f"{bad.status}: {bad.message[:80]} ({time.monotonic() - started:.1f} s for three)"
            rows.append({"fault": f"a candidate {fault}", "tries": 1, "survived": int(good), "outcome": outcome})
            print(rows[-1], flush=True)
        os.kill(pool._server._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        (after,) = pool.measure(task, [faulty.tiled()])
        good = after.status is Status.OK
        rows.append(
            {"fault": "the measuring server killed", "tries": 1, "survived": int(good), "outcome": after.status}
        )
    return rows


if __name__ == "__main__":
    main()
