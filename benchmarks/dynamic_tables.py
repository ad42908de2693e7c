"""What `benchmarks.dynamic` has measured, as a table and a picture.

In: its rows, one an operator. Out: text, and docs/results/dynamic.svg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def text_of(rows: Mapping[str, Any], *, threads: int, step: int) -> str:
    """The table.  threads: of all sides.  step: between the sizes."""
    from benchmarks.results import geometric_mean

    heads = ["operator", "eager ÷ ours", "within 10 %", "dispatched", "padding", "tuning", "padded to 8 ÷ ours"]
    heads += ["torch.compile ÷ ours", "TVM dynamic ÷ ours", "`optimize` for one size ÷ ours"]
    lines = [
        f"{threads} thread{'s' * (threads > 1)}; every {f'{step}th ' * (step > 1)}T from 1 to 128, one kernel for all.",
        "eager ÷ ours: PyTorch's time over ours, above 1 ours is faster. Within 10 %: sizes at which ours takes at",
        "most 1.1 times as long. Dispatched: sizes at which the chosen program takes at most 1.05 times what the best",
        "of the pool does. Tuning: seconds for all sizes, compiling included. Padding: of the computation, on average;",
        "there is none along the rows. The others: means over eight sizes.",
        "",
        f"| {' | '.join(heads)} |",
        f"| {' | '.join('---' for _ in heads)} |",
    ]
    for name, row in rows.items():
        own, theirs = row["seconds"]["ours"], row["seconds"]["eager"]
        ratios = [theirs[t] / own[t] for t in own]
        near = sum(r >= 1 / 1.1 for r in ratios) / len(ratios)
        chosen = sum(share >= 1 / 1.05 for share in row["of pool"].values()) / len(row["of pool"])
        above = {t: min((s for s in EIGHT_SIZES if s >= int(t) and str(s) in own), default=None) for t in own}
        padded = [own[str(s)] / own[t] for t, s in above.items() if s is not None]
        cells = [
            name,
            f"**{geometric_mean(ratios):.2f}**",
            f"{near:.0%}",
            f"{chosen:.0%}",
            f"{row['padding']:.1%}",
            f"{row['tuning']:.0f} s",
            f"{geometric_mean(padded):.2f}" if padded else "–",
        ]
        for side in ("torch.compile", "TVM dynamic", "static"):
            found = row["seconds"].get(side, {})
            base = row["seconds"].get("beside static", own) if side == "static" else own
            shared = [found[t] / base[t] for t in found if t in base]
            cells.append(f"{geometric_mean(shared):.2f}" if shared else "–")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "uKernels that each stage left: " + "; ".join(_counts(name, row) for name, row in rows.items()) + "."]
    return "\n".join(lines)


EIGHT_SIZES = (16, 32, 48, 64, 80, 96, 112, 128)
"""Sizes to which one would pad."""


def _counts(name: str, row: Mapping[str, Any]) -> str:
    stages = " → ".join(f"{count}" for count in row["stages"].values())
    return f"{name} {stages}, {row['uKernels in code']} in code, {row['measured']} timings"


def picture(rows: Mapping[str, Any], flops: Callable[[str, int], int]) -> None:
    """GFLOPS over T of both sides.  flops: of an operator at a T."""
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
            own = row["seconds"][side]
            axis.plot([int(t) for t in own], [flops(name, int(t)) / s / 1e9 for t, s in own.items()], label=side)
        axis.set(title=name, xlabel="T", ylabel="GFLOPS")
        axis.legend()
    figure.savefig(Path(FOLDER) / "dynamic.svg")
