"""The demo: tune ResNet-18 for a few minutes and compare: python -m benchmarks.demo [--seconds 240].

Prints a table of PyTorch eager, torch.compile, untuned TVM and the tuned model, with the maximum relative error
against float64 eager, and writes the same as JSON; the tuned model lies beside it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from felixlike.bench.timing import Timed


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="time for tuning; five minutes hold all of the rest"
    )
    parser.add_argument("--store", default=None, help="keep measurements here; SECONDS are those of all runs then")
    parser.add_argument("--output", type=Path, default=Path("out/demo.json"))
    arguments = parser.parse_args()

    from support.models import resnet18

    import felixlike as fx
    from felixlike.bench.processes import Sides
    from felixlike.bench.sides import baselines, saved

    model, inputs = resnet18()
    tuned = fx.optimize(model, inputs, seconds=arguments.seconds, store=arguments.store)
    print(tuned.report, flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    model_file = arguments.output.with_suffix(".flx")
    tuned.save(model_file)
    with Sides() as sides:
        times = sides.compare({**baselines(resnet18), "felixlike tuned": partial(saved, model_file, resnet18)})
    _print(times, tuned.report)
    arguments.output.write_text(json.dumps(_json(times, tuned.report.to_json()), indent=1))


def _print(times: dict[str, Timed], report: object) -> None:
    from rich.console import Console
    from rich.table import Table

    from felixlike.report import Report
    from felixlike.report.tables import latency

    assert isinstance(report, Report)
    tuned = times["felixlike tuned"].seconds
    table = Table(title="ResNet-18, 1×3×224×224, float32", title_justify="left")
    for name in ("", "median", "mean", "quartiles", "tuned is faster by", "max relative error"):
        table.add_column(name, justify="left" if not name else "right")
    for name, t in times.items():
        error = f"{report.error:.1e}" if name == "felixlike tuned" else ""
        spread = f"{latency(t.low)} – {latency(t.high)}"
        table.add_row(name, latency(t.seconds), latency(t.mean), spread, f"{t.seconds / tuned:.2f}×", error)
    Console(width=110).print(table)
    print(f"Error against {report.reference}; tuned for {report.seconds:.0f} s on {report.device}.")


def _json(times: dict[str, Timed], report: dict[str, object]) -> dict[str, object]:
    return {"sides": {name: asdict(t) for name, t in times.items()}, "report": report}


if __name__ == "__main__":
    main()
