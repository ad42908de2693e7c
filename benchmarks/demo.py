"""Run the demo: python -m benchmarks.demo [--seconds 30].

The demo compiles ResNet-18 with predicted schedules and compares it with PyTorch eager and torch.compile. Each side
runs in its own process, and the timings are interleaved. Then it searches for better schedules and prints the
improvement. It writes the figures as JSON, the tuned model, and the report as an HTML page.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from felixlike.measure.sides.timing import Timed

PREDICTED, TUNED = "felixlike, predicted", "felixlike, tuned"


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to search in the second step")
    parser.add_argument("--store", default=None, help="keep measurements here; --seconds is the total of all runs then")
    parser.add_argument("--output", type=Path, default=Path("out/demo.json"))
    arguments = parser.parse_args()

    from support.models import resnet18

    import felixlike as fx
    from felixlike.bench.sides import COMPILED, EAGER, baselines, saved
    from felixlike.measure.sides.processes import Sides

    folder = arguments.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    model, inputs = resnet18()

    print("Step 1 of 2: ResNet-18 with the schedules that the cost model predicts to be the fastest.", flush=True)
    started = time.monotonic()
    predicted = fx.optimize(model, inputs, trials=0, progress=False)
    print(
        f"Compiled in {time.monotonic() - started:.0f} s, without measuring anything. Its output differs from "
        f"PyTorch's in float64 by at most {predicted.report.error:.0e} of the largest value.",
        flush=True,
    )
    predicted.save(folder / "demo-predicted.flx")
    with Sides() as sides:
        print("Comparing it with PyTorch …", flush=True)
        ours = {PREDICTED: partial(saved, folder / "demo-predicted.flx", resnet18)}
        times = sides.compare({**baselines(resnet18, (EAGER, COMPILED)), **ours}, seconds_a_side=1.0)
        _print(times)

        print(
            f"Step 2 of 2: searching for {arguments.seconds:.0f} s. The gradient of the predicted latency chooses "
            "candidates, which are measured.",
            flush=True,
        )
        tuned = fx.optimize(model, inputs, seconds=arguments.seconds, store=arguments.store)
        model_file = arguments.output.with_suffix(".flx")
        tuned.save(model_file)
        ours[TUNED] = partial(saved, model_file, resnet18)
        tuned_times = sides.compare(ours, seconds_a_side=1.0)
    _print(times | tuned_times)
    gain = tuned_times[PREDICTED].seconds / tuned_times[TUNED].seconds
    result = (
        f"made the network {gain:.2f} times as fast as before" if gain > 1.02 else "found none that is clearly faster"
    )
    print(f"The search measured {tuned.report.trials} candidates and {result}.")
    page = arguments.output.with_suffix(".html")
    tuned.report.save_html(page)
    print(f"What was found, kernel by kernel: {page}. The model, for felixlike.load: {model_file}.")
    sides_json = {name: asdict(t) for name, t in (times | tuned_times).items()}
    arguments.output.write_text(json.dumps({"sides": sides_json, "report": tuned.report.to_json()}, indent=1))


def _print(times: dict[str, Timed]) -> None:
    from rich.console import Console
    from rich.table import Table

    from felixlike.bench.sides import EAGER
    from felixlike.report.tables import latency

    table = Table(title="ResNet-18, one image of 224 × 224, float32", title_justify="left")
    for name in ("", "median", "quartiles", "speed"):
        table.add_column(name, justify="left" if not name else "right")
    for name, t in times.items():
        spread = f"{latency(t.low)} – {latency(t.high)}"
        speed = f"{times[EAGER].seconds / t.seconds:.2f}×" if EAGER in times else ""
        table.add_row(name, latency(t.seconds), spread, speed)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
