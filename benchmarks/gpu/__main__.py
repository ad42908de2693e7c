"""Everything on a GPU, in one command: python -m benchmarks.gpu --minutes 25 [--folder out/gpu] [--only points].

In this order: random points of every operator against float64; ten subgraphs against cuBLAS and cuDNN (TF32 off and on)
and torch.compile; contractions in TF32 and float16, against the same, with errors; networks, also against
reduce-overhead; search against stock MetaSchedule on four subgraphs; dynamic shapes against cuBLAS; records for the
cost model in the rest. The same command goes on where it was stopped. Each part runs in a process of its own: one that
hangs or breaks the GPU's context costs a row. --rehearse needs no GPU.
Writes docs/results/gpu_DEVICE.md and .json; of a rehearsal FOLDER/page.md and .json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part

_START, _PATIENCE = 60.0, 2.0
"""Seconds that a process may take beside its rows, and how many times the time that a row should take."""


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="for everything")
    parser.add_argument("--folder", type=Path, default=Path("out") / "gpu")
    parser.add_argument("--only", default="", help="parts, with commas between")
    parser.add_argument("--names", default="", help="rows whose name contains this")
    parser.add_argument("--points", type=int, default=2, help="of each sketch")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, as far as one can go")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.folder, given.rehearse, time.monotonic() + 60.0 * given.minutes, given.points)
    if given.part:
        (part,) = (part for part in PARTS if part.name == given.part)
        run_part(bench, part, given.names)
        return 0
    if not given.rehearse:
        _require_gpu(bench)
    begun, seconds = time.monotonic(), 60.0 * given.minutes
    share = 0.0
    for part in PARTS:
        share += part.share
        if not given.only or part.name in given.only.split(","):
            end = min(bench.end, begun + share * seconds)
            _in_processes(bench, part, end, given.names)
    write_page(bench.journal, given.folder, rehearsal=given.rehearse)
    return 0


def run_part(bench: Bench, part: Part, names: str = "") -> None:
    """Make the rows of a part that are missing, in this process, while there is time; errors become rows."""
    for name, place, missing in _missing(bench.journal, part, names):
        if bench.left < part.least:
            return
        seconds = bench.left / (missing - place)
        bench.journal.begin(part.name, name, seconds)
        started = time.monotonic()
        try:
            row = part.row(bench, name, seconds)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        row["took"] = round(time.monotonic() - started, 2)
        bench.journal.note(part.name, name, row)
        print(f"{part.name}: {name}: {row.get('failed', 'done')}, {row['took']:.1f} s", flush=True)


def _missing(journal: Journal, part: Part, names: str) -> list[tuple[str, int, int]]:
    """(name, its place, how many) of the rows that are missing."""
    found = [name for name in part.names() if names in name and name not in journal.rows(part.name)]
    return [(name, place, len(found)) for place, name in enumerate(found)]


def _in_processes(bench: Bench, part: Part, end: float, names: str) -> None:
    """Run a part in a process, and in another one when that ends early or says nothing for long."""
    while _missing(bench.journal, part, names) and end - time.monotonic() > part.least:
        left = end - time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu", "--part", part.name, "--minutes", str(left / 60)]
        command += ["--folder", str(bench.folder), "--names", names, "--points", str(bench.points)]
        command += ["--rehearse"] if bench.rehearsal else []
        before = len(bench.journal.rows(part.name))
        words = _watched(subprocess.Popen(command), bench.journal, part.name)
        name, _ = bench.journal.unfinished(part.name)
        if name and words:
            bench.journal.note(part.name, name, {"failed": words})
            print(f"{part.name}: {name}: {words}", flush=True)
        elif words and len(bench.journal.rows(part.name)) == before:
            print(f"{part.name}: {words} before its first row", flush=True)
            return
        if not words:
            return


def _watched(process: subprocess.Popen[bytes], journal: Journal, part: str) -> str:
    """Wait for a part's process; what was wrong with it, empty for nothing."""
    lines, since = journal.lines(), time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        if journal.lines() != lines:
            lines, since = journal.lines(), time.monotonic()
        quiet, (_, expected) = time.monotonic() - since, journal.unfinished(part)
        if quiet > _PATIENCE * expected + _START:
            process.kill()
            process.wait()
            return f"it was stopped after {quiet:.0f} s: a kernel that hangs, or a compiler"
    return "" if process.returncode == 0 else f"its process ended with {process.returncode}"


def _require_gpu(bench: Bench) -> None:
    """Raise what is wrong with the GPU, the driver or the compiler before anything begins."""
    from felixlike.codegen import require_toolchain

    require_toolchain()
    _ = bench.target


if __name__ == "__main__":
    sys.exit(main())
