"""Run all GPU benchmarks in one command: python -m benchmarks.gpu --minutes 25 [--folder out/gpu] [--only points].

The parts run in this order: random points of every operator against float64; ten subgraphs against cuBLAS and cuDNN
(TF32 off and on) and torch.compile; contractions in TF32 and float16 against the same, with errors; networks, also
against reduce-overhead; search against stock MetaSchedule on four subgraphs; dynamic shapes against cuBLAS; records
for the cost model in the remaining time. The same command resumes after an interruption. Each part runs in its own
process, so that a hang or a broken GPU context costs one row. --together prepares (tunes and compiles) all rows at the
same time, in a process each, and then times them one after another; --cores is how many each may use.
--rehearse needs no GPU. The benchmark writes docs/results/gpu_DEVICE.md and .json, or FOLDER/page.md and .json in a
rehearsal.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.turns import Turns

_START, _PATIENCE = 60.0, 2.0
"""Seconds that a process can take in addition to its rows, and the multiple of a row's expected time that is allowed.
"""

_TUNING = 0.8
"""Fraction of the common preparation in which a row is to be tuned; torch.compile needs the rest. Chosen by hand."""


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="for everything")
    parser.add_argument("--folder", type=Path, default=Path("out") / "gpu")
    parser.add_argument("--only", default="", help="parts, with commas between")
    parser.add_argument("--names", default="", help="rows in whose name this regular expression is found")
    parser.add_argument("--points", type=int, default=2, help="of each sketch")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, as far as one can go")
    parser.add_argument("--together", action="store_true", help="prepare all rows at the same time")
    parser.add_argument("--cores", type=int, default=2, help="of each row with --together, default 2")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # this and the following are used by subprocesses
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.folder, arguments.rehearse, time.monotonic() + 60.0 * arguments.minutes, arguments.points)
    if arguments.part:
        (part,) = (part for part in PARTS if part.name == arguments.part)
        if arguments.turns:
            bench.turns = Turns(arguments.turns, arguments.folder.name)
            part = replace(part, names=lambda: [arguments.row])
        run_part(bench, part, arguments.names)
        return 0
    if not arguments.rehearse:
        _require_gpu(bench)
    parts = [part for part in PARTS if not arguments.only or part.name in arguments.only.split(",")]
    if arguments.together:
        _together(bench, parts, arguments.names, arguments.cores)
    else:
        _in_turn(bench, parts, arguments.names)
    write_page(bench.journal, arguments.folder, rehearsal=arguments.rehearse)
    return 0


def run_part(bench: Bench, part: Part, names: str = "") -> None:
    """Compute the missing rows of a part in this process while there is time. Errors are recorded as rows."""
    for name, place, missing in _missing(bench.journal, part, names):
        if bench.left < part.least:
            return
        seconds = bench.left / (missing - place)
        bench.journal.begin(part.name, name, seconds)
        started = time.monotonic()
        try:
            row = part.row(bench, name, seconds)
        except Exception as error:
            traceback.print_exc()
            row = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        row["took"] = round(time.monotonic() - started, 2)
        bench.journal.note(part.name, name, row)
        print(f"{part.name}: {name}: {row.get('failed', 'done')}, {row['took']:.1f} s", flush=True)


def _missing(journal: Journal, part: Part, names: str) -> list[tuple[str, int, int]]:
    """Return (name, position, count) of the missing rows."""
    done = journal.rows(part.name)
    missing_names = [n for n in part.names() if n not in done and re.search(names, n)]
    return [(name, place, len(missing_names)) for place, name in enumerate(missing_names)]


def _in_turn(bench: Bench, parts: Sequence[Part], names: str) -> None:
    """Run parts one after another, each until its share of the time has passed."""
    started = time.monotonic()
    seconds = bench.left * max(1.0, 1.0 / (sum(part.share for part in parts) or 1.0))
    for part, share in zip(parts, itertools.accumulate(part.share for part in parts), strict=True):
        _in_processes(bench, part, min(bench.end, started + share * seconds), names)


def _command(bench: Bench, part: Part, seconds: float, folder: Path, *more: str) -> list[str]:
    """Return the command of a process that computes rows of a part."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part.name, "--minutes", str(seconds / 60)]
    command += ["--folder", str(folder), "--points", str(bench.points), *more]
    return [*command, "--rehearse"] if bench.rehearsal else command


def _in_processes(bench: Bench, part: Part, end: float, names: str) -> None:
    """Run a part in a process, and start another one if it ends early or reports nothing for long."""
    while _missing(bench.journal, part, names) and end - time.monotonic() > part.least:
        command = _command(bench, part, end - time.monotonic(), bench.folder, "--names", names)
        before = len(bench.journal.rows(part.name))
        failure = _watched(subprocess.Popen(command), bench.journal, part.name)
        name, _ = bench.journal.unfinished(part.name)
        if name and failure:
            bench.journal.note(part.name, name, {"failed": failure})
            print(f"{part.name}: {name}: {failure}", flush=True)
        elif failure and len(bench.journal.rows(part.name)) == before:
            print(f"{part.name}: {failure} before its first row", flush=True)
            return
        if not failure:
            return


def _together(bench: Bench, parts: Sequence[Part], names: str, cores: int) -> None:
    """Prepare all rows at the same time, each in a process with some cores, and time those that are prepared in time
    one after another.
    """
    missing = [(part, name) for part in parts for name, _, _ in _missing(bench.journal, part, names)]
    preparing = bench.left - sum(part.turn for part, _ in missing)
    turns_end = time.monotonic() + preparing
    shared = bench.folder / "together"
    shutil.rmtree(shared, ignore_errors=True)
    usable = itertools.cycle(sorted(os.sched_getaffinity(0)))
    rows: list[tuple[Part, str, Turns, Journal, subprocess.Popen[bytes]]] = []
    for number, (part, name) in enumerate(missing):
        turns, folder = Turns(shared, f"row{number}"), shared / "rows" / f"row{number}"
        folder.mkdir(parents=True)
        command = _command(bench, part, _TUNING * preparing, folder, "--row", name, "--turns", str(shared))
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(cores)}
        of_row = {next(usable) for _ in range(cores)}
        process = subprocess.Popen(command, env=environment, preexec_fn=partial(os.sched_setaffinity, 0, of_row))
        rows.append((part, name, turns, Journal(folder / "journal.jsonl"), process))

    def wait(until: float, *, prepared: bool) -> None:
        """Wait until all processes have ended, or are `prepared`."""
        while time.monotonic() < until and any(
            process.poll() is None and not (prepared and turns.is_prepared) for _, _, turns, _, process in rows
        ):
            time.sleep(0.1)

    wait(turns_end, prepared=True)
    late = [process for _, _, turns, _, process in rows if process.poll() is None and not turns.is_prepared]
    _kill(late)
    Turns(shared, "").let_all_go()
    wait(bench.end + _START, prepared=False)
    _kill([process for *_, process in rows])
    for part, name, _, journal, process in rows:
        failed = f"it was not prepared in {preparing:.0f} s" if process in late else _ended(process)
        bench.journal.note(part.name, name, journal.rows(part.name).get(name, {"failed": failed}))


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the processes that still run."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def _ended(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended."""
    return f"its process ended with {process.returncode}"


def _watched(process: subprocess.Popen[bytes], journal: Journal, part: str) -> str:
    """Wait for a part's process and return its failure, or an empty string."""
    lines, since = journal.lines(), time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        if journal.lines() != lines:
            lines, since = journal.lines(), time.monotonic()
        quiet, (_, expected) = time.monotonic() - since, journal.unfinished(part)
        if quiet > _PATIENCE * expected + _START:
            _kill([process])
            return f"it was stopped after {quiet:.0f} s: a kernel that hangs, or a compiler"
    return "" if process.returncode == 0 else _ended(process)


def _require_gpu(bench: Bench) -> None:
    """Raise an error if the GPU, the driver or the compiler does not work."""
    from felixlike.codegen import require_toolchain

    require_toolchain()
    _ = bench.target


if __name__ == "__main__":
    sys.exit(main())
