"""Measure tensor comprehensions: python -m benchmarks.tensor_comprehensions [--rounds 20] [--only NAME …].

The kernels of the slides and three additional operators (tc_kernels.py) are timed as compiled at the first call,
tuned, in PyTorch, and with torch.compile. Timings are interleaved, each side in its own process with as many threads.
The benchmark reports the minimum, the median and the 90th percentile. It writes
docs/results/tensor_comprehensions.json and .md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.tc_kernels import KERNELS

_SIDES = ("PyTorch eager", "torch.compile", "default", "tuned")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of tuning each kernel")
    parser.add_argument("--only", nargs="*", choices=list(KERNELS), help="measure these again; other rows stay")
    arguments = parser.parse_args()

    from benchmarks.results import of_this_machine, write_for_this_machine

    rows_by_name = {row["kernel"]: row for row in of_this_machine("tensor_comprehensions").get("rows", [])}
    for name in arguments.only or KERNELS:
        rows_by_name[name] = _measure(name, arguments.rounds)
        rows = [rows_by_name[name] for name in KERNELS if name in rows_by_name]
        write_for_this_machine("tensor_comprehensions", {"rows": rows}, _text(rows))


def tuned(name: str, folder: str) -> Callable[[], object]:
    """Return a call of a kernel that is loaded from the compilation cache in a folder."""
    import felixlike as fx

    os.environ["XDG_CACHE_HOME"] = folder
    inputs, kernel = KERNELS[name].tensors(), fx.tc.define(KERNELS[name].source)
    kernel(*inputs)
    return lambda: kernel(*inputs)


def eager(name: str) -> Callable[[], object]:
    """Return a call of PyTorch eager."""
    return _inference(KERNELS[name].eager, KERNELS[name].tensors())


def compiled(name: str) -> Callable[[], object]:
    """Return a call of torch.compile, which compiles in the first call."""
    import torch

    return _inference(torch.compile(KERNELS[name].eager, dynamic=False), KERNELS[name].tensors())


def _inference(call: Callable[..., Any], inputs: list[Any]) -> Callable[[], object]:
    import torch

    @torch.inference_mode()
    def run() -> object:
        return call(*inputs)

    return run


def _measure(name: str, rounds: int) -> dict[str, Any]:
    import felixlike as fx
    from felixlike.measure.sides.processes import Sides

    inputs = KERNELS[name].tensors()
    with tempfile.TemporaryDirectory(prefix="felixlike-tc-") as home:
        folders = {side: os.path.join(home, side) for side in ("default", "tuned")}
        os.environ["XDG_CACHE_HOME"] = folders["default"]
        fx.tc.define(KERNELS[name].source)(*inputs)
        os.environ["XDG_CACHE_HOME"] = folders["tuned"]
        kernel = fx.tc.define(KERNELS[name].source)
        kernel.tune(*inputs, rounds=rounds)
        assert kernel.report is not None
        print(kernel.report, flush=True)
        makes: dict[str, Callable[[], Callable[[], object]]] = {
            "PyTorch eager": partial(eager, name),
            "torch.compile": partial(compiled, name),
            **{side: partial(tuned, name, folder) for side, folder in folders.items()},
        }
        with Sides() as sides:
            times = sides.compare(makes)
        report = kernel.report
    row: dict[str, Any] = {"kernel": name, "ours": KERNELS[name].ours, "error": report.error, "trials": report.trials}
    row |= {"tuning_seconds": report.seconds, "calls": {side: t.calls for side, t in times.items()}}
    return row | {side: [t.least, t.seconds, t.most] for side, t in times.items()}


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [
        "Microseconds of a call: quickest, median, what nine of ten stay below. Ratios are of the better of the two",
        "sides of PyTorch over the tuned kernel: of the quickest calls, and of medians; above 1 the kernel is faster.",
        "",
        "| kernel | " + " | ".join(_SIDES) + " | quickest | median |",
        "| --- |" + " ---: |" * (len(_SIDES) + 2),
    ]
    for row in rows:
        cells = [" / ".join(f"{s * 1e6:.1f}" for s in row[side]) if side in row else "does not work" for side in _SIDES]
        best = [min(row[side][place] for side in _SIDES[:2] if side in row) for place in (0, 1)]
        cells += [f"{best[place] / row['tuned'][place]:.2f}" for place in (0, 1)]
        lines.append(f"| {row['kernel']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
