"""Inject faults: python -m benchmarks.faults [--kills 200] [--only NAME].

- Candidates crash, hang, exhaust memory, print megabytes, or return NaN or wrong values. They must be reported as such
  and never chosen, and the next candidate must be measured normally.
- Measuring processes, their server, or a network server are killed. No other candidate may be affected.
- Stores are truncated, have flipped bits, or have a newer version. They must be refused by name or return only valid
  records.
- Tuning runs use one store concurrently, with a clock that jumps, on a full disk (a small tmpfs), or are ended by
  kill -9 at random moments. Every reported measurement must be in the store, and the run, restarted until it ends, must
  measure exactly the candidates of an undisturbed run.
- Processes whose compiled graph is tuned by another process are ended by kill -9 at random moments. No process may
  continue, and after the next start of any felixlike process only caches may be on the disk.

The benchmark writes docs/results/faults.json and .md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from benchmarks.results import write

Row: TypeAlias = dict[str, Any]

_WORKERS_KILLED, _ENDS, _FLIPS, _PAIRS = 20, 1000, 1000, 3
"""Numbers of tries: killed processes, truncated stores, stores with flipped bits, pairs of concurrent runs."""

_RESULTS, _SECONDS = 12, 1.0
"""A run is killed up to `_SECONDS` after one of the first `_RESULTS` results, so that any operation can be
interrupted, on a loaded machine too.
"""

_DISK = "400k"
"""Enough space for a store of a few candidates but not for a whole run's."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", default="", help="of candidates, servers, stores, runs, kills, tuners")
    arguments = parser.parse_args()
    groups: dict[str, Callable[[], Iterator[Row]]] = {
        "candidates": _candidates,
        "servers": _servers,
        "stores": _stores,
        "runs": _runs,
        "kills": partial(_kills, arguments.kills),
        "tuners": partial(_tuners, arguments.kills),
    }
    rows = []
    for name, group in groups.items():
        if arguments.only in name:
            for row in group():
                rows.append(row)
                print(row, flush=True)
    if arguments.only:
        return
    lines = ["| fault | tries | survived | what happened |", "| --- | --- | --- | --- |"]
    lines += [f"| {r['fault']} | {r['tries']} | {r['survived']} | {r['outcome']} |" for r in rows]
    write("faults", {"rows": rows}, "\n".join(lines), command=f"faults --kills {arguments.kills}")


def _row(fault: str, tries: int, survived: int, outcome: str) -> Row:
    return {"fault": fault, "tries": tries, "survived": survived, "outcome": outcome}


def _candidates() -> Iterator[Row]:
    """Measure each faulty candidate between two good ones, then kill measuring processes."""
    from support import faulty

    from felixlike.measure import Limits, MeasurePool, Status

    task = faulty.task_of(faulty.matmul(), "matmul")
    limits = Limits(run_seconds=2.0, memory_bytes=2**29)
    with MeasurePool(task.target, limits=limits, reuse=False) as pool:
        for fault, (candidate, expected) in faulty.candidates().items():
            started = time.monotonic()
            before, bad, after = pool.measure(task, [faulty.tiled(), candidate, faulty.tiled()])
            good = before.status is after.status is Status.OK and bad.status is expected
            outcome = f"{bad.status}: {bad.message[:80]} ({time.monotonic() - started:.1f} s for three)"
            yield _row(f"a candidate {fault}", 1, int(good), outcome)
        rng = random.Random(0)
        killed: Counter[str] = Counter()
        survived = tries = 0
        while tries < _WORKERS_KILLED:
            kill_results: list[bool] = []
            killer = threading.Thread(
                target=lambda kill_results=kill_results: kill_results.append(
                    faulty.kill_a_worker(pool, rng.uniform(0.0, 0.5))
                )
            )
            killer.start()
            measurements = pool.measure(task, [faulty.tiled(tile=tile) for tile in (4, 8, 16, 32)])
            killer.join()
            lost = [m for m in measurements if m.status is not Status.OK]
            if not kill_results[0]:
                continue
            tries += 1
            survived += len(lost) <= 1 and all(m.status is Status.CRASHED for m in lost)
            killed.update(m.message for m in lost)
        outcome = ", ".join(f"{count} × {words}" for words, count in killed.items()) + "; all others were ok"
        yield _row("a process that builds or measures killed from outside", tries, survived, outcome)
        os.kill(pool._builder.processes.server._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        (after,) = pool.measure(task, [faulty.tiled()])
        yield _row("the measuring server killed", 1, int(after.status is Status.OK), after.status.value)


def _servers() -> Iterator[Row]:
    """Kill one of two servers on this machine while both measure."""
    from support import faulty
    from support.loopback import Loopback

    from felixlike.measure import RpcPool, Status
    from felixlike.measure.rpc.tracker import Tracker

    task = faulty.task_of(faulty.matmul(), "matmul")
    with Loopback() as loopback:
        loopback.start(cpu=2)
        with RpcPool(task.target, tracker=loopback.where, key="cpu", patience=5.0, reuse=False) as pool:
            sleepers = [faulty.calling(task.module["main"], "usleep", 2_000_000) for _ in range(2)]
            killer = threading.Timer(1.5, loopback.kill, [Tracker(loopback.where).servers()["cpu"].addresses[0]])
            killer.start()
            measurements = pool.measure(task, [*sleepers, *(faulty.tiled(tile=tile) for tile in (4, 8, 16, 32))])
            killer.join()
        servers_left = len(Tracker(loopback.where).servers()["cpu"].addresses)
    status_counts = Counter(m.status.value for m in measurements)
    good = servers_left == 1 and status_counts == {Status.WRONG: 2, Status.OK: 4}
    words = ", ".join(f"{count} {status}" for status, count in status_counts.items())
    yield _row("one of two servers killed at work", 1, int(good), f"{words}: those that only sleep are wrong")


def _stores() -> Iterator[Row]:
    """Open stores that are truncated, have flipped bits, or have a newer version."""
    from support import stores

    from felixlike import records
    from felixlike.errors import StoreError

    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="felixlike-faults-") as folder:
        original, path = Path(folder) / "sound.sqlite", Path(folder) / "copy.sqlite"
        written = stores.fill(original)
        length = original.stat().st_size
        ends = rng.sample(range(1, length), _ENDS)
        cut = Counter(stores.after(partial(stores.truncate, size=end), original, written, path) for end in ends)
        yield _row("a store that ends too early", _ENDS, cut["refused"], _counts_text(cut))
        flips = Counter(
            stores.after(partial(stores.flip_at_random, rng=rng), original, written, path) for _ in range(_FLIPS)
        )
        yield _row("a store with flipped bits", _FLIPS, flips["refused"] + flips["works"], _counts_text(flips))
        new = Path(folder) / "newer.sqlite"
        stores.newer(new)
        before, words = new.read_bytes(), "opened"
        try:
            records.open(new).close()
        except StoreError as error:
            words = str(error).removeprefix(f"{new}: ")
        good = words != "opened" and new.read_bytes() == before
        yield _row("a store of a newer version", 1, int(good), words)


def _counts_text(counts: Counter[str]) -> str:
    meaning = {
        "refused": "refused with a StoreError",
        "works": "told only what was written",
        "wrong": "told what was not",
    }
    return ", ".join(f"{count} {meaning[result]}" for result, count in counts.items())


def _runs() -> Iterator[Row]:
    """Run tuning twice concurrently, with a clock that jumps, and on a full disk."""
    from support import runs

    with tempfile.TemporaryDirectory(prefix="felixlike-faults-") as folder:
        expected = _undisturbed(Path(folder))
        whole = 0
        for pair in range(_PAIRS):
            store = Path(folder) / f"two{pair}.sqlite"
            both_runs = [runs.Run(store, seed=seed) for seed in (0, 1)]
            ended = [run.end() for run in both_runs]
            stored_candidates = runs.stored(store)
            # Measurements of the other run that were stored before a run read the store count as its own, so the
            # split between the runs can vary.
            good = all(finished and reported <= set(stored_candidates) for reported, finished in ended)
            whole += (
                good
                and len(set(stored_candidates)) >= runs.TRIALS
                and len(stored_candidates) == sum(len(reported) for reported, _ in ended)
            )
        outcome = f"in {whole} of {_PAIRS} both ended, and the store holds what they reported and nothing else"
        yield _row("two runs on one store at once", _PAIRS, whole, outcome)
        store = Path(folder) / "clock.sqlite"
        reported, finished = runs.Run(store, clock="jumps").end()
        good = finished and reported == set(runs.stored(store)) == expected
        yield _row("a clock that jumps", 1, int(good), f"{len(reported)} of {len(expected)} candidates, the same ones")
        yield _full_disk(Path(folder) / "disk", expected)


def _full_disk(folder: Path, expected: set[str]) -> Row:
    """Run on a tmpfs that becomes full, enlarge it, and run again, all in a mount namespace."""
    from support.runs import said, stored

    folder.mkdir()
    saved = folder.with_name("saved")
    run = f"{sys.executable} -m support.runs {folder}/s.sqlite"
    script = f"""
        mount -t tmpfs -o size={_DISK} tmpfs {folder} || exit 77
        {run} > {saved}.first 2> {saved}.errors; echo $?
        cp -r {folder} {saved}.full
        mount -o remount,size=100m {folder}
        {run} > {saved}.second || exit 78
        cp -r {folder} {saved}.done
    """
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return _row("a full disk", 1, 0, f"the script left with {done.returncode}: {done.stderr[-200:]}")
    first, second = (said(Path(f"{saved}.{name}").read_text().splitlines()) for name in ("first", "second"))
    on_disk = set(stored(Path(f"{saved}.full") / "s.sqlite"))
    words = Path(f"{saved}.errors").read_text().strip().splitlines()[-1]
    good = int(done.stdout) != 0 and not first[1] and "StoreError" in words and first[0] <= on_disk
    good = good and second[1] and set(stored(Path(f"{saved}.done") / "s.sqlite")) == expected
    words = words.replace(f"{folder}/", "")
    outcome = f"{words} {len(first[0] - on_disk)} of {len(first[0])} reported lost; with room, the run was completed"
    return _row(f"a full disk (a tmpfs of {_DISK})", 1, int(good), outcome)


def _undisturbed(folder: Path) -> set[str]:
    """Return the candidates of a run without faults."""
    from support import runs

    store = folder / "undisturbed.sqlite"
    runs.Run(store).end()
    expected = set(runs.stored(store))
    assert len(expected) == runs.TRIALS
    return expected


def _kills(kill_count: int) -> Iterator[Row]:
    """Kill runs on one store at random moments and restart them until they finish."""
    from support import runs

    lost = different = kills = started = 0
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="felixlike-faults-") as folder:
        expected = _undisturbed(Path(folder))
        while kills < kill_count:
            started += 1
            store = Path(folder) / f"{started}.sqlite"
            reported: set[str] = set()
            ended = False
            while not ended:
                run = runs.Run(store)
                if kills < kill_count:
                    run.wait(rng.randrange(_RESULTS) if rng.random() < 0.5 else 0)
                    time.sleep(rng.uniform(0.0, _SECONDS))
                    run.kill()
                run_reported, ended = run.end()
                kills += not ended
                reported |= run_reported
                lost += len(reported - set(runs.stored(store)))
            different += set(runs.stored(store)) != expected
            print(f"{kills} kills, {started} runs, {lost} lost, {different} different", flush=True)
    good = lost == 0 and different == 0
    outcome = f"{lost} reported measurements lost; {different} of {started} resumed runs measured other candidates"
    yield _row("kill -9 of the run", kills, kills if good else 0, outcome)


_SERVER = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval(), torch.randn(16, 64)
compiled = torch.compile(model, backend="felixlike", options={"seconds": 3600, "store": sys.argv[1]})
with torch.no_grad():
    compiled(x)
print("called", flush=True)
time.sleep(3600)
"""

_TUNED_SECONDS = 20.0
"""Maximum seconds from the first call to the kill, by which the tuner has started and waits, loads, builds or
measures.
"""

_END_SECONDS = 15.0


_AT_ONCE = 3
"""Number of concurrent kills, each with its own folders."""


def _tuners(kills: int) -> Iterator[Row]:
    """Kill processes that have a background tuner at random moments."""
    rng = random.Random(0)
    moments = [rng.uniform(0.0, _TUNED_SECONDS) for _ in range(kills)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_kill_with_tuner, moments))
    had_tuner, running, on_disk = (sum(column) for column in zip(*results, strict=True))
    survived = sum(not (left_running or left_on_disk) for _, left_running, left_on_disk in results)
    outcome = (
        f"{had_tuner} had a tuner at that moment; {running} left a process running, {on_disk} anything but"
        " caches on disk after the next start"
    )
    yield _row("kill -9 of a process whose graph is tuned in the background", kills, survived, outcome)


def _kill_with_tuner(seconds: float) -> tuple[bool, bool, bool]:
    """Kill a process `seconds` after its first call. Return whether it had a tuner, left a process, and left files."""
    with tempfile.TemporaryDirectory(prefix="felixlike-faults-") as folder:
        places = {name: Path(folder) / name for name in ("TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
        for place in places.values():
            place.mkdir()
        environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
        command = [sys.executable, "-c", _SERVER, str(Path(folder) / "s.sqlite")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdout is not None
            server.stdout.readline()
            time.sleep(seconds)
            children = list(psutil.Process(server.pid).children(recursive=True))
            server.kill()
        _, alive = psutil.wait_procs(children, timeout=_END_SECONDS)
        for process in alive:
            process.kill()
        sweep = "from felixlike._util import scratch; scratch.discard(scratch.folder('any'))"
        subprocess.run([sys.executable, "-c", sweep], check=True, env=environment)
        folders_left = [path for path in places["TMPDIR"].iterdir() if path.name.startswith("felixlike")]
    print(
        f"after {seconds:.1f} s: {len(children)} children, {len(alive)} left, {len(folders_left)} folders left",
        flush=True,
    )
    return bool(children), bool(alive), bool(folders_left)


if __name__ == "__main__":
    main()
