"""Measure how close smooth features are to exact ones: python -m benchmarks.smoothness [--points 200].

For every operator of `support.operators`, on the CPU and on sm_90, the benchmark compares smooth with exact features
at random valid points and reports the relative error by feature. It also reports whether equality saturation
finished, and whether any value or gradient is infinite or NaN in the variables' box or up to 10 % outside it. It
writes docs/results/smoothness.json and .md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from support.operators import OPERATORS

from benchmarks.results import write
from felixlike.features import NAMES, formulas
from felixlike.smooth import Relaxed, relax
from felixlike.smooth.relax import WIDTH
from felixlike.symbolic import Kind, sketches
from felixlike.tuning import one_thread


@dataclass(slots=True)
class Row:
    """One operator on one target.

    `errors` are the median and the 90th and 99th percentile of the relative errors of all non-zero features.
    `unsaturated` counts structures whose rewriting stopped at a limit. `infinite` counts values and gradients in the
    box that are not finite.
    """

    name: str
    target: str
    structures: int
    errors: tuple[float, float, float]
    unsaturated: int
    infinite: int


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200, help="random points a sketch")
    arguments = parser.parse_args()
    by_feature: dict[str, list[Any]] = defaultdict(list)
    rows: list[Row] = []
    with one_thread():
        for target in ("cpu", "sm_90"):
            for name in OPERATORS:
                row = _measure(name, target, arguments.points, by_feature)
                if row is not None:
                    rows.append(row)
                    print(row, flush=True)
    features = {name: _summary(np.concatenate(errors)) for name, errors in by_feature.items()}
    data = {"width": WIDTH, "rows": [asdict(r) for r in rows], "features": features}
    write("smoothness", data, _text(rows, features))


def _measure(name: str, target: str, points: int, by_feature: dict[str, list[Any]]) -> Row | None:
    errors: list[Any] = []
    structures = unsaturated = infinite = 0
    for sketch in sketches(OPERATORS[name](), target):
        if not sketch.is_symbolic:
            continue
        relaxed = relax(formulas(sketch))
        drawn = sketch.sample(points, seed=4)
        exact = relaxed.formulas.evaluate(drawn)
        with torch.no_grad():
            smooth = np.expm1(relaxed(relaxed.log_points(drawn)).numpy())
        for column, feature in enumerate(NAMES):
            e, s = exact[..., column], smooth[..., column]
            present = e != 0
            error = np.abs(s - e)[present] / np.abs(e)[present]
            if error.size:
                errors.append(error)
                by_feature[feature.partition("_")[2] if feature.startswith("buffer") else feature].append(error)
        structures += len(relaxed.saturated)
        unsaturated += sum(not ended for ended in relaxed.saturated.values())
        infinite += _infinite(relaxed, drawn)
    if not structures:
        return None
    return Row(name, target, structures, _summary(np.concatenate(errors)), unsaturated, infinite)


def _infinite(relaxed: Relaxed, points: Any) -> int:
    """Count values and gradients that are not finite at random points of the box and up to 10 % outside it."""
    x = relaxed.log_points(points)
    generator = torch.Generator().manual_seed(0)
    for column, variable in enumerate(relaxed.sketch.variables):
        if variable.kind is not Kind.LOCATION:
            top = float(np.log1p(variable.choices[-1]))
            x[:, column] = (torch.rand(len(x), generator=generator, dtype=torch.float64) * 1.2 - 0.1) * top
    x.requires_grad_(True)
    values = relaxed(x)
    count = int((~torch.isfinite(values)).sum())
    if x.shape[1]:
        (gradient,) = torch.autograd.grad(values.sum(), x)
        count += int((~torch.isfinite(gradient)).sum())
    return count


def _summary(errors: Any) -> tuple[float, float, float]:
    median, high, higher = np.quantile(errors, [0.5, 0.9, 0.99])
    return float(median), float(high), float(higher)


def _text(rows: list[Row], features: dict[str, tuple[float, float, float]]) -> str:
    def cells(errors: tuple[float, float, float]) -> str:
        return " | ".join(f"{e:.2%}" for e in errors)

    lines = [
        f"Relative error of smooth features at random valid points, width {WIDTH}. Not saturated: structures whose",
        "rewriting stopped at a limit. Not finite: values and gradients in the box of the variables and 10 % outside.",
        "",
        "| operator | target | structures | median | 90 % | 99 % | not saturated | not finite |",
        "| --- " * 8 + "|",
        *(
            f"| {r.name} | {r.target} | {r.structures} | {cells(r.errors)} | {r.unsaturated} | {r.infinite} |"
            for r in rows
        ),
        "",
        "| feature | median | 90 % | 99 % |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {cells(errors)} |" for name, errors in features.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
