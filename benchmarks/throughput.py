"""Measure the cost of each step of evaluating a candidate: python -m benchmarks.throughput.

On the sketches of a 512×512×512 matrix product and of a 3×3 convolution, the benchmark times sampling of valid
points, exact features, and smooth features with gradients, and compares with TVM's sampling and PerStoreFeature on
the same candidates. It also times compiling the formulas of a new sketch, loading them from the cache, and preparing
every task of a network. Everything runs on one thread in one process. Smooth features are float32, as in the search.
It writes docs/results/throughput.json and .md.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from support import models
from support.operators import OPERATORS

from benchmarks.results import write
from felixlike import _tvm, extract_tasks
from felixlike.features import Formulas, formulas
from felixlike.smooth import Relaxed, relax
from felixlike.spaces import metaschedule
from felixlike.symbolic import Sketch, sketches
from felixlike.tuning import one_thread

BATCH = 4096
GRADIENT_BATCH = 1024
TVM_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One sketch. Values are seconds per candidate, except that `cold` and `cached` are seconds for the sketch."""

    sketch: str
    variables: int
    stores: int
    sample: float
    tvm_sample: float
    exact: float
    smooth: float
    tvm_features: float
    cold: float
    cached: float


def main() -> None:
    """Run the benchmark."""
    rows: list[Row] = []
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # an empty cache of smooth formulas
        for name in ("matmul", "conv2d_3x3"):
            for target in ("cpu", "sm_90"):
                for sketch in sketches(OPERATORS[name](), target):
                    rows.append(_measure(f"{name}, {target}, sketch {sketch.index}", sketch))
                    print(rows[-1], flush=True)
        prepared = _prepare_network()
    write("throughput", {"rows": [asdict(r) for r in rows], "network": prepared}, _text(rows, prepared))


def _measure(name: str, sketch: Sketch) -> Row:
    root = (-1,) * len(sketch.location_columns)
    cold, (exact_formulas, relaxed) = _timed(lambda: _compiled(sketch, root))
    cached, _ = _timed(lambda: relax(exact_formulas, dtype=torch.float32).of_structure(root))
    points = sketch.sample(BATCH, seed=0)
    points[:, sketch.location_columns] = -1
    seconds = _best(lambda: sketch.sample(BATCH, seed=1, paths=1)) / BATCH
    log_x = relaxed.log_points(points[:GRADIENT_BATCH])
    tvm_points = points[sketch.valid(points)][:TVM_SAMPLES]
    return Row(
        sketch=name,
        variables=len(sketch.variables),
        stores=len(exact_formulas.stores),
        sample=seconds,
        tvm_sample=_timed(lambda: sketch.sampler.by_tvm(TVM_SAMPLES, np.random.default_rng(0)))[0] / TVM_SAMPLES,
        exact=_best(lambda: exact_formulas.evaluate(points)) / BATCH,
        smooth=_best(lambda: _gradients(relaxed, log_x)) / GRADIENT_BATCH,
        tvm_features=_tvm_features(sketch, tvm_points),
        cold=cold,
        cached=cached,
    )


def _compiled(sketch: Sketch, locations: tuple[int, ...]) -> tuple[Formulas, Relaxed]:
    """Return the formulas of a sketch and their torch code, computed without a cache."""
    exact_formulas = formulas(sketch)
    relaxed = relax(exact_formulas, dtype=torch.float32)
    relaxed.of_structure(locations)
    return exact_formulas, relaxed


def _gradients(relaxed: Relaxed, log_x: torch.Tensor) -> torch.Tensor:
    x = log_x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(relaxed(x).sum(), x)
    return gradient


def _tvm_features(sketch: Sketch, points: Any) -> float:
    """Return the seconds that PerStoreFeature takes for a scheduled candidate."""
    context = metaschedule.tune_context(sketch.task.module, sketch.task.target)
    candidates = [_tvm.ms.MeasureCandidate(sketch.schedule(p), []) for p in points.tolist()]
    extractor = _tvm.ms.feature_extractor.PerStoreFeature()
    return _best(lambda: extractor.extract_from(context, candidates)) / len(candidates)


def _prepare_network() -> dict[str, float]:
    """Return the seconds from tasks to compiled formulas for all tasks of a network without a cache. BERT's 12 layers
    are the largest.
    """
    seconds: dict[str, float] = {}
    networks = {
        "resnet18": models.resnet18(),
        "bert": models.bert(),
        "mobilenet_v2": models.mobilenet_v2(),
        "bert with 12 layers": models.bert(layers=12),
    }
    for name, (module, inputs) in networks.items():
        operators = sum(node.op == "call_function" for node in torch.export.export(module, inputs).graph.nodes)
        name = f"{name} ({operators} operators)"
        tasks = extract_tasks(module, inputs)
        started = time.perf_counter()
        for task in tasks:
            for sketch in sketches(task):
                if sketch.is_symbolic:
                    _compiled(sketch, (-1,) * len(sketch.location_columns))
        seconds[name] = time.perf_counter() - started
    return seconds


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def _best(run: Callable[[], Any]) -> float:
    """Return the median seconds of five runs after a warm-up."""
    run()
    return statistics.median(_timed(run)[0] for _ in range(5))


def _text(rows: list[Row], prepared: dict[str, float]) -> str:
    lines = [
        f"One thread; batches of {BATCH} (gradients: {GRADIENT_BATCH}); per candidate, and candidates a second.",
        "",
        "| sketch | sampling µs | TVM's µs | exact features /s | smooth, with gradients /s | PerStoreFeature /s "
        "| cold s | cached ms |",
        "| --- " * 8 + "|",
    ]
    lines += [
        f"| {r.sketch} | {r.sample * 1e6:.1f} | {r.tvm_sample * 1e6:.0f} | {1 / r.exact:,.0f} | {1 / r.smooth:,.0f} "
        f"| {1 / r.tvm_features:,.0f} | {r.cold:.2f} | {r.cached * 1e3:.0f} |"
        for r in rows
    ]
    networks = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in prepared.items())
    return "\n".join([*lines, "", f"All tasks of a network, from tasks to compiled formulas, cold: {networks}."])


if __name__ == "__main__":
    main()
