"""Format the results of `benchmarks.dynamic` as a table and a plot.

Input: one row per operator. Outputs: text, and docs/results/dynamic.svg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def text_of(rows: Mapping[str, Any], *, threads: int, step: int) -> str:
    """Return the table. `threads` is the number of threads of all sides, `step` the distance between sizes."""
    from benchmarks.results import geometric_mean

    heads = ["operator", "eager ÷ ours", "within 10 %", "dispatched", "FTuner's", "FTuner ÷ ours", "padding", "tuning"]
    heads += ["padded to 8 ÷ ours"]
    heads += ["torch.compile ÷ ours", "TVM dynamic ÷ ours", "`optimize` for one size ÷ ours"]
    lines = [
        f"{threads} thread{'s' * (threads > 1)}; every {f'{step}th ' * (step > 1)}T from 1 to 128, one kernel for all.",
        "eager ÷ ours: PyTorch's time over ours, above 1 ours is faster. Within 10 %: sizes at which ours takes at",
        "most 1.1 times as long. Dispatched: sizes at which the chosen program takes at most 1.05 times what the best",
        "of the pool does. FTuner's: the same for the program that FTuner's score chooses without timings",
        '(`planner="ftuner"`). FTuner ÷ ours: its time over that of the dispatched program. Tuning: seconds for all',
        "sizes, compiling included. Padding: of the computation, on average; there is none along the rows. The others:",
        "means over eight sizes.",
        "",
        f"| {' | '.join(heads)} |",
        f"| {' | '.join('---' for _ in heads)} |",
    ]
    for name, row in rows.items():
        our_seconds, eager_seconds = row["seconds"]["ours"], row["seconds"]["eager"]
        ratios = [eager_seconds[t] / our_seconds[t] for t in our_seconds]
        share_within_10_percent = sum(r >= 1 / 1.1 for r in ratios) / len(ratios)
        ours_of_pool, published_of_pool = row["of pool"], row["FTuner of pool"]
        padded_sizes = {
            t: min((s for s in EIGHT_SIZES if s >= int(t) and str(s) in our_seconds), default=None) for t in our_seconds
        }
        padded = [our_seconds[str(s)] / our_seconds[t] for t, s in padded_sizes.items() if s is not None]
        cells = [
            name,
            f"**{geometric_mean(ratios):.2f}**",
            f"{share_within_10_percent:.0%}",
            f"{_near_best(ours_of_pool):.0%}",
            f"{_near_best(published_of_pool):.0%}",
            f"{geometric_mean([ours_of_pool[t] / published_of_pool[t] for t in ours_of_pool]):.2f}",
            f"{row['padding']:.1%}",
            f"{row['tuning']:.0f} s",
            f"{geometric_mean(padded):.2f}" if padded else "–",
        ]
        for side in ("torch.compile", "TVM dynamic", "static"):
            side_seconds = row["seconds"].get(side, {})
            base = row["seconds"].get("beside static", our_seconds) if side == "static" else our_seconds
            side_ratios = [side_seconds[t] / base[t] for t in side_seconds if t in base]
            cells.append(f"{geometric_mean(side_ratios):.2f}" if side_ratios else "–")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "uKernels that each stage left: " + "; ".join(_counts(name, row) for name, row in rows.items()) + "."]
    return "\n".join(lines)


def _near_best(of_pool: Mapping[str, float]) -> float:
    """Return the fraction of sizes at which a program takes at most 1.05 times what the best of the pool does."""
    return sum(share >= 1 / 1.05 for share in of_pool.values()) / len(of_pool)


EIGHT_SIZES = (16, 32, 48, 64, 80, 96, 112, 128)
"""Sizes that the padding baseline pads to."""


def _counts(name: str, row: Mapping[str, Any]) -> str:
    stages = " → ".join(f"{count}" for count in row["stages"].values())
    return f"{name} {stages}, {row['uKernels in code']} in code, {row['measured']} timings"


def picture(rows: Mapping[str, Any], flops: Callable[[str, int], int]) -> None:
    """Plot GFLOPS over T of both sides. `flops` returns the operations of an operator at a T."""
    from benchmarks.results import FOLDER

    try:
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is missing", flush=True)
        return
    figure, axes = plt.subplots(2, 3, figsize=(12, 6), layout="constrained")
    for axis, (name, row) in zip(axes.flat, rows.items(), strict=False):
        for side in ("ours", "eager"):
            side_seconds = row["seconds"][side]
            axis.plot(
                [int(t) for t in side_seconds],
                [flops(name, int(t)) / s / 1e9 for t, s in side_seconds.items()],
                label=side,
            )
        axis.set(title=name, xlabel="T", ylabel="GFLOPS")
        axis.legend()
    figure.savefig(Path(FOLDER) / "dynamic.svg")
