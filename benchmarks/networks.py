"""Whole networks, tuned and compared: python -m benchmarks.networks [--seconds 100] [--only NAME].

ResNet-18 and MobileNet-v2 (1×3×224×224), a BERT encoder of 2 layers (hidden 256, sequence 64) and a small MLP against
PyTorch eager, torch.compile, ONNX Runtime and untuned TVM, interleaved, all with the same threads; and the maximum
relative error against float64 eager. Writes docs/results/networks.json and .md.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.timing import interleaved, pin_threads

NAMES = ("resnet18", "mobilenet_v2", "bert", "mlp")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="time for tuning each network")
    parser.add_argument("--only", choices=NAMES, help="measure this one again; the rows of the others stay")
    arguments = parser.parse_args()
    pin_threads()

    from benchmarks.results import geometric_mean, of_this_machine, write_for_this_machine

    earlier = of_this_machine("networks").get("rows", []) if arguments.only else []
    found = {row["network"]: row for row in earlier}
    found |= {name: _measure(name, arguments.seconds) for name in NAMES if arguments.only in (None, name)}
    rows = [found[name] for name in NAMES if name in found]
    mean = geometric_mean([row["TVM untuned"] / row["tuned"] for row in rows])
    write_for_this_machine("networks", {"rows": rows, "untuned_over_tuned": mean}, _text(rows, mean))


def _measure(name: str, seconds: float) -> dict[str, Any]:
    import felixlike as fx
    from benchmarks import models
    from benchmarks.sides import baselines

    model, inputs = getattr(models, name)()
    tuned = fx.optimize(model, inputs, seconds=seconds)
    print(tuned.report, flush=True)
    times = interleaved({**baselines(model, inputs), "tuned": lambda: tuned(*inputs)})
    row: dict[str, Any] = {"network": name, "error": tuned.report.error, "trials": tuned.report.trials}
    row |= {"tuning_seconds": tuned.report.seconds, "total_seconds": tuned.report.total_seconds}
    row |= {side: t.seconds for side, t in times.items()}
    row["quartiles"] = {side: [t.low, t.high] for side, t in times.items()}
    return row


def _text(rows: list[dict[str, Any]], mean: float) -> str:
    others = ("PyTorch eager", "torch.compile", "ONNX Runtime", "TVM untuned")
    lines = [
        "Milliseconds of a call, medians of interleaved turns; ratios above 1: ours is",
        "faster. best other: of the first three. in all: with import, compiling and the final check.",
        "",
        f"| network | {' | '.join(others)} | tuned | best other ÷ tuned | untuned ÷ tuned | max error "
        "| trials | tuning s | in all s |",
        "| --- " * 12 + "|",
    ]
    for row in rows:
        times = " | ".join(f"{row[s] * 1e3:.3g}" if s in row else "–" for s in (*others, "tuned"))
        best = min(row[side] for side in others[:3] if side in row) / row["tuned"]
        lines.append(
            f"| {row['network']} | {times} | {best:.2f} | {row['TVM untuned'] / row['tuned']:.1f} | {row['error']:.1e} "
            f"| {row['trials']} | {row['tuning_seconds']:.0f} | {row['total_seconds']:.0f} |"
        )
    return "\n".join([*lines, "", f"Untuned TVM ÷ tuned, geometric mean: **{mean:.1f}**."])


if __name__ == "__main__":
    main()
