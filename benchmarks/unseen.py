"""Measure operators that the space was not designed for: python -m benchmarks.unseen [--trials 8] [--rows FILE]
[--only NAME].

Layers of common networks in sizes other than those of `subgraphs.py`, some of them odd, are compared with PyTorch
eager: whole calls on one core, interleaved, each side in its own process. Rows are appended to a file, and a run
skips the rows that the file has. The benchmark writes docs/results/unseen.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felixlike.measure.sides.processes import Make, Sides


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8, help="candidates a task")
    parser.add_argument("--rows", type=Path, help="where finished rows are kept, one JSON object a line")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "TVM_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

    from benchmarks.results import geometric_mean, keep, kept, write_for_this_machine
    from felixlike.measure.sides.processes import Sides

    rows = {row["operator"]: row for row in kept(arguments.rows)}
    with Sides() as sides:
        for name in _operators():
            if arguments.only in name and name not in rows:
                rows[name] = _row(name, arguments.trials, sides)
                keep(arguments.rows, rows[name])
                print(json.dumps(rows[name]), flush=True)
    sorted_rows = sorted(rows.values(), key=_ratio)
    ratios = [_ratio(row) for row in sorted_rows]
    text = "\n".join(
        [
            "Microseconds of a call on one core, median / mean, in interleaved turns; ratios of medians, above 1 ours",
            "is faster than eager.",
            "",
            "| operator | eager | ours | eager ÷ ours | tuned in (s) | error |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                f"| {r['operator']} | {_cell(r, 'eager')} | {_cell(r, 'ours')} | {_ratio(r):.2f} "
                f"| {r['tuning']:.0f} | {r['error']:.1e} |"
                for r in sorted_rows
            ),
            "",
            f"eager ÷ ours, geometric mean: **{geometric_mean(ratios):.2f}**; "
            f"at least 1 on {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)}.",
        ]
    )
    if arguments.only:
        print(text)
    else:
        write_for_this_machine("unseen", {"rows": sorted_rows}, text, command=f"unseen --trials {arguments.trials}")


def _ratio(row: dict[str, Any]) -> float:
    return float(row["eager"] / row["ours"])


def _cell(row: dict[str, Any], side: str) -> str:
    """Format median / mean in µs. Rows of earlier versions have no mean."""
    values = [row[side], *([row["mean"][side]] if "mean" in row else [])]
    return " / ".join(f"{seconds * 1e6:.0f}" for seconds in values)


def operator(name: str) -> Any:
    """Return a module of `_operators` and its inputs, seeded."""
    import torch

    torch.manual_seed(0)
    module, shapes = _operators()[name]()
    return module.eval(), [torch.rand(*shape) - 0.5 for shape in shapes]


def _row(name: str, trials: int, sides: Sides) -> dict[str, Any]:
    import torch

    import felixlike as fx
    from felixlike.bench.sides import EAGER, baselines, saved

    torch.set_num_threads(1)
    make = partial(operator, name)
    module, inputs = make()
    count = len(fx.extract_tasks(module, inputs))
    tuned = fx.optimize(module, inputs, trials=trials * count, progress=False)
    with tempfile.TemporaryDirectory(prefix="felixlike-unseen-") as folder:
        path = Path(folder) / "operator.flx"
        tuned.save(path)
        makes: dict[str, Make] = {"eager": baselines(make, [EAGER])[EAGER], "ours": partial(saved, path, make)}
        times = sides.compare(makes, seconds_a_side=0.6, slot=0.03)
    row: dict[str, Any] = {"operator": name, "tuning": tuned.report.total_seconds, "error": tuned.report.error}
    row |= {label: t.seconds for label, t in times.items()}
    row["mean"] = {label: t.mean for label, t in times.items()}
    row["quartiles"] = {label: [t.low, t.high] for label, t in times.items()}
    return row


def _operators() -> dict[str, Callable[[], Any]]:
    """Return a dict from names to functions that make a module and the shapes of its inputs."""
    import torch
    from support.models import Apply
    from torch import nn

    f = torch.nn.functional
    image, small, rows = (1, 64, 28, 28), (1, 64, 17, 17), (128, 512)

    def of(module: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Any]:
        return lambda: (module(), shapes)

    def do(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Any]:
        return lambda: (Apply(function), shapes)

    return {
        "conv1d dilated": of(lambda: nn.Conv1d(64, 64, 9, padding=16, dilation=4), (1, 64, 256)),
        "conv1d 31 taps, odd": of(lambda: nn.Conv1d(13, 53, 31, padding=15), (1, 13, 501)),
        "conv1d depthwise": of(lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256), (1, 256, 200)),
        "conv2d 5×5": of(lambda: nn.Conv2d(32, 64, 5, padding=2), (1, 32, 28, 28)),
        "conv2d 7×7 stride 2": of(lambda: nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 112, 112)),
        "conv2d 4×4 patches": of(lambda: nn.Conv2d(3, 96, 4, 4), (1, 3, 112, 112)),
        "conv2d dilated": of(lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2), image),
        "conv2d 8 groups": of(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=8), image),
        "conv2d 32 groups": of(lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), (1, 128, 28, 28)),
        "conv2d 53 to 113": of(lambda: nn.Conv2d(53, 113, 3), (1, 53, 29, 31)),
        "conv2d 13 to 13": of(lambda: nn.Conv2d(13, 13, 3, padding=1), (1, 13, 53, 53)),
        "conv2d 1×7": of(lambda: nn.Conv2d(64, 64, (1, 7), padding=(0, 3)), small),
        "conv2d 7×1": of(lambda: nn.Conv2d(64, 64, (7, 1), padding=(3, 0)), small),
        "conv2d batch 8": of(lambda: nn.Conv2d(32, 32, 3, padding=1), (8, 32, 14, 14)),
        "conv3d": of(lambda: nn.Conv3d(16, 32, 3, padding=1), (1, 16, 8, 14, 14)),
        "depthwise 5×5": of(lambda: nn.Conv2d(96, 96, 5, padding=2, groups=96), (1, 96, 28, 28)),
        "depthwise 7×7": of(lambda: nn.Conv2d(384, 384, 7, padding=3, groups=384), (1, 384, 14, 14)),
        "depthwise stride 2": of(lambda: nn.Conv2d(96, 96, 3, 2, 1, groups=96), (1, 96, 56, 56)),
        "conv1d transpose": of(lambda: nn.ConvTranspose1d(128, 64, 16, 8, 4), (1, 128, 64)),
        "conv2d transpose 3×3": of(lambda: nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), image),
        "conv3d transpose": of(lambda: nn.ConvTranspose3d(32, 16, 4, 2, 1), (1, 32, 4, 8, 8)),
        "linear, odd": of(lambda: nn.Linear(113, 53), (113, 113)),
        "linear, one row": of(lambda: nn.Linear(1024, 1024, bias=False), (1, 1024)),
        "linear of images": of(lambda: nn.Linear(96, 384), (1, 14, 14, 96)),
        "batch matmul, odd": do(lambda a, b: a @ b, (5, 53, 113), (5, 113, 13)),
        "batch matmul, transposed": do(lambda a, b: a.mT @ b, (12, 64, 64), (12, 64, 64)),
        "einsum": do(lambda a, b: torch.einsum("bihd,bjhd->bhij", a, b), (1, 100, 8, 64), (1, 100, 8, 64)),
        "attention": do(f.scaled_dot_product_attention, *[(1, 8, 128, 64)] * 3),
        "softmax of channels": do(lambda x: x.softmax(1), (1, 21, 64, 64)),
        "softmax, odd": do(lambda x: x.softmax(-1), (1, 12, 197, 197)),
        "log softmax": do(lambda x: x.log_softmax(-1), (128, 1000)),
        "RMS norm": of(lambda: nn.RMSNorm(512), (1, 128, 512)),
        "group norm": of(lambda: nn.GroupNorm(8, 64), image),
        "batch norm": of(lambda: nn.BatchNorm2d(64), (4, 64, 28, 28)),
        "normalise": do(lambda x: f.normalize(x, dim=-1), (256, 128)),
        "GELU": of(nn.GELU, (4, 64, 28, 28)),
        "SiLU": of(nn.SiLU, (4, 64, 28, 28)),
        "tanh": of(nn.Tanh, (4, 64, 28, 28)),
        "leaky ReLU": of(lambda: nn.LeakyReLU(0.1), (4, 64, 28, 28)),
        "max pooling": of(lambda: nn.MaxPool2d(3, 2, 1), (1, 64, 56, 56)),
        "mean pooling": of(lambda: nn.AvgPool2d(2), (1, 64, 56, 56)),
        "adaptive pooling, odd": of(lambda: nn.AdaptiveAvgPool2d(6), (1, 256, 13, 13)),
        "sum of rows": do(lambda x: x.sum(-1), (512, 512)),
        "variance of images": do(lambda x: x.var((2, 3)), (4, 64, 28, 28)),
        "log of summed exponentials": do(lambda x: x.logsumexp(-1), (256, 512)),
        "concatenation, odd": do(lambda a, b: torch.cat([a, b], -1), (256, 200), (256, 56)),
        "reflection": of(lambda: nn.ReflectionPad2d(3), (1, 64, 32, 32)),
        "nearest neighbours": do(lambda x: f.interpolate(x, scale_factor=2.0), image),
        "bilinear": do(lambda x: f.interpolate(x, scale_factor=2.0, mode="bilinear"), (1, 32, 28, 28)),
        "pixel shuffle": of(lambda: nn.PixelShuffle(2), (1, 64, 32, 32)),
        "channel shuffle": of(lambda: nn.ChannelShuffle(4), (1, 128, 28, 28)),
        "transposition": do(lambda x: x.t().contiguous(), (512, 512)),
        "a · x + b, channels": do(lambda x, a, b: x * a + b, (4, 64, 28, 28), (1, 64, 1, 1), (1, 64, 1, 1)),
        "gated": do(lambda a, b: f.silu(a) * b, rows, rows),
        "GRU cell": of(lambda: nn.GRUCell(128, 256), (16, 128), (16, 256)),
    }


if __name__ == "__main__":
    main()
