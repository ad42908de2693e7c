"""Check whether the threads of a call run on different cores: python -m benchmarks.placement [--processes 10]
[--trials 16].

One saved convolution runs on all cores in fresh processes, with common settings of OpenMP and TVM, and with torch
imported before or after felixlike. The benchmark reports the spread of the processes' medians, the ratio of means to
medians, and how often a worker was on the caller's core. It writes docs/results/placement.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from felixlike.hardware.probe import usable_processors

_PLACES = ",".join(f"{{{min(core)}}}" for core in usable_processors())
_SETTINGS: dict[str, dict[str, str]] = {
    "nothing": {},
    "OMP_PROC_BIND": {"OMP_PROC_BIND": "true"},
    "OMP_PROC_BIND, a place a core": {"OMP_PROC_BIND": "true", "OMP_PLACES": _PLACES},
    "OMP_NUM_THREADS": {"OMP_NUM_THREADS": str(len(usable_processors()))},
    "TVM_BIND_THREADS=0": {"TVM_BIND_THREADS": "0"},
    "TVM_BIND_THREADS=1": {"TVM_BIND_THREADS": "1"},
}
_SHAPE = (1, 64, 28, 28)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10, help="for each setting")
    parser.add_argument("--trials", type=int, default=16, help="candidates for the convolution")
    parser.add_argument("--call", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        print(json.dumps(_call(arguments.call)))
        return
    from benchmarks.results import write_for_this_machine

    with tempfile.TemporaryDirectory(prefix="felixlike-placement-") as folder:
        model = Path(folder) / "convolution.flx"
        _save(model, arguments.trials)
        rows: list[dict[str, Any]] = [
            {"set": name, "first": first, "processes": []} for name in _SETTINGS for first in ("felixlike", "torch")
        ]
        for _ in range(arguments.processes):  # interleaved, so that all settings meet the same disturbances
            for row in rows:
                row["processes"].append(_in_process(model, _SETTINGS[row["set"]], row["first"]))
    write_for_this_machine("placement", {"rows": rows}, _text(rows))


def _save(path: Path, trials: int) -> None:
    import torch
    from torch import nn

    import felixlike as fx

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).eval()
    fx.optimize(model, [_SHAPE], trials=trials, progress=False).save(path)


def _in_process(model: Path, settings: dict[str, str], first: str) -> dict[str, float]:
    """Return the result of `_call` in a process with only these settings, which imports `first` first."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "TVM_", "GOMP_"))}
    program = (
        f"import {first}, sys; sys.argv[1:] = ['--call', {str(model)!r}]; from benchmarks.placement import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**others, **settings}, check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _call(path: Path) -> dict[str, float]:
    """Return seconds and mean of a call, and the share of calls after which a worker was on the caller's core."""
    import torch

    import felixlike as fx
    from felixlike.hardware import placement
    from felixlike.measure.sides.timing import summary, timer

    model, x = fx.load(path), torch.rand(*_SHAPE)
    torch.rand(500, 500) @ torch.rand(500, 500)  # start PyTorch's threads
    times = timer(lambda: model(x))
    timed = summary(times(max(100, round(0.5 / min(times(20))))))
    threads = [place.thread for place in placement.placed()]
    together = 0
    for _ in range(200):
        model(x)
        together += not placement.apart([placement.Share(t, frozenset([_last_processor(t)])) for t in threads])
    return {"seconds": timed.seconds, "mean": timed.mean, "together": together / 200}


def _last_processor(thread: int) -> int:
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[36])


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [
        "One saved convolution in fresh processes. spread: the fastest median of a call ÷ the slowest. mean ÷ median:",
        "of the calls of a process, the median of all processes. together: the share of calls after which a worker had",
        "been on the caller's core.",
        "",
        "| set | imported first | µs | spread | mean ÷ median | together |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        processes = row["processes"]
        seconds = [process["seconds"] for process in processes]
        mean_over_median = statistics.median(process["mean"] / process["seconds"] for process in processes)
        together = statistics.fmean(process["together"] for process in processes)
        lines.append(
            f"| {row['set']} | {row['first']} | {statistics.median(seconds) * 1e6:.0f} "
            f"| {min(seconds) / max(seconds):.2f} | {mean_over_median:.2f} | {together:.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
