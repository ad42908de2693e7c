"""Whole networks, tuned and compared: python -m benchmarks.networks [--seconds 100] [--only NAME].

ResNet-18 and MobileNet-v2 (1×3×224×224), a BERT encoder of 2 layers (hidden 256, sequence 64) and a small MLP against
PyTorch eager, torch.compile, ONNX Runtime and untuned TVM, interleaved, each in a process of its own with as many
threads; the medians of ten fresh processes of the tuned model; and the maximum relative error against float64 eager.
Writes docs/results/networks.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

NAMES = ("resnet18", "mobilenet_v2", "bert", "mlp")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="time for tuning each network")
    parser.add_argument("--only", choices=NAMES, help="measure this one again; the rows of the others stay")
    arguments = parser.parse_args()

    from benchmarks.results import geometric_mean, of_this_machine, write_for_this_machine

    earlier = of_this_machine("networks").get("rows", []) if arguments.only else []
    found = {row["network"]: row for row in earlier}
    found |= {name: _measure(name, arguments.seconds) for name in NAMES if arguments.only in (None, name)}
    rows = [found[name] for name in NAMES if name in found]
    mean = geometric_mean([row["TVM untuned"] / row["tuned"] for row in rows])
    write_for_this_machine("networks", {"rows": rows, "untuned_over_tuned": mean}, _text(rows, mean))


def _measure(name: str, seconds: float) -> dict[str, Any]:
    import felixlike as fx
    from benchmarks.processes import Sides, fresh
    from benchmarks.sides import baselines, saved
    from felixlike.testing import models

    make = getattr(models, name)
    model, inputs = make()
    tuned = fx.optimize(model, inputs, seconds=seconds)
    print(tuned.report, flush=True)
    with tempfile.TemporaryDirectory(prefix="felixlike-networks-") as folder:
        path = Path(folder) / f"{name}.flx"
        tuned.save(path)
        with Sides() as sides:
            times = sides.compare({**baselines(make), "tuned": partial(saved, path, make)})
        apart = [t.seconds for t in fresh(partial(saved, path, make))]
    row: dict[str, Any] = {"network": name, "error": tuned.report.error, "trials": tuned.report.trials}
    row |= {"tuning_seconds": tuned.report.seconds, "total_seconds": tuned.report.total_seconds}
    row |= {side: t.seconds for side, t in times.items()}
    row["mean"] = {side: t.mean for side, t in times.items()}
    row["quartiles"] = {side: [t.low, t.high] for side, t in times.items()}
    row["processes"] = apart
    return row


def _text(rows: list[dict[str, Any]], mean: float) -> str:
    others = ("PyTorch eager", "torch.compile", "ONNX Runtime", "TVM untuned")
    lines = [
        "Milliseconds of a call, median / mean, in interleaved turns; ratios of medians above 1: ours is faster.",
        "best other: of the first three. processes: of ten fresh ones of the tuned model, the fastest median ÷ the",
        "slowest. in all: with import, compiling and the final check.",
        "",
        f"| network | {' | '.join(others)} | tuned | best other ÷ tuned | untuned ÷ tuned | processes | max error "
        "| trials | tuning s | in all s |",
        "| --- " * 13 + "|",
    ]
    for row in rows:
        times = " | ".join(_cell(row, side) for side in (*others, "tuned"))
        spread = f"{min(row['processes']) / max(row['processes']):.2f}" if "processes" in row else "–"
        best = min(row[side] for side in others[:3] if side in row) / row["tuned"]
        lines.append(
            f"| {row['network']} | {times} | {best:.2f} | {row['TVM untuned'] / row['tuned']:.1f} | {spread} "
            f"| {row['error']:.1e} | {row['trials']} | {row['tuning_seconds']:.0f} | {row['total_seconds']:.0f} |"
        )
    return "\n".join([*lines, "", f"Untuned TVM ÷ tuned, geometric mean: **{mean:.1f}**."])


def _cell(row: dict[str, Any], side: str) -> str:
    """Median / mean in ms; rows of earlier versions have no means."""
    found = [row[side]] if side in row else []
    found += [row["mean"][side]] if side in row.get("mean", ()) else []
    return " / ".join(f"{seconds * 1e3:.3g}" for seconds in found) or "–"


if __name__ == "__main__":
    main()
