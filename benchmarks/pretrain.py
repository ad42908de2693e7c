"""Train the shipped cost model: python -m benchmarks.pretrain data/measurements-cpu.sqlite [--steps 600].

First on four fifths of the workloads, judged on the rest (the split is by workload, never by sample); then on all of
them for the weights that are written to felixlike/costmodel/data/cpu.pt. Writes docs/results/pretrain.json and .md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.results import write
from benchmarks.training_workloads import one_core, workloads
from felixlike import records
from felixlike.costmodel import CostModel, Network, Training, save_weights, train
from felixlike.costmodel.weights import SHIPPED
from felixlike.frontend import import_model
from felixlike.search import Space
from felixlike.symbolic import stored_sketch


@dataclass(slots=True)
class Samples:
    """All measurements of one workload.  parts: (features, seconds) by sketch."""

    name: str
    key: str
    parts: list[tuple[Any, list[float]]]

    def __len__(self) -> int:
        return sum(len(seconds) for _, seconds in self.parts)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are small: two threads spend their time on waiting for one another
    samples = _read(arguments.store)
    held_out = samples[::5]
    learned = [s for s in samples if s not in held_out]
    network = _train(learned, arguments.steps)
    rows = [_judge(network, s) for s in held_out]
    SHIPPED.mkdir(exist_ok=True)
    save_weights(_train(samples, arguments.steps), SHIPPED / "cpu.pt")
    counts = {"workloads": len(samples), "samples": sum(map(len, samples)), "held_out": len(held_out)}
    write("pretrain", {**counts, "rows": rows}, _text(counts, rows))


def _read(path: str) -> list[Samples]:
    """Workloads with enough measurements and something to choose."""
    found: dict[str, Samples] = {}
    with records.open(path, read_only=True) as store:
        for name, module, inputs in workloads():
            for task in import_model(module, inputs, one_core()).tasks:
                if task.key not in found:
                    samples = Samples(f"{name}: {task.name}", task.key, _parts(store, task))
                    if len(samples) >= 12:
                        found[task.key] = samples
    return list(found.values())


def _parts(store: records.Store, task: Any) -> list[tuple[Any, list[float]]]:
    space = Space(task, "all")
    rows: dict[str, list[tuple[tuple[int, ...], float]]] = {}
    for record in store.measurements(task):
        rows.setdefault(record.sketch, []).append((record.point, record.measurement.seconds))
    parts = []
    for key, members in rows.items():
        sketch = space.by_key(key) or stored_sketch(task, store.trace(task.key, key) or "")
        features = None if sketch is None else space.features(sketch, np.array([p for p, _ in members]))
        if features is not None:
            parts.append((features, [s if math.isfinite(s) else math.inf for _, s in members]))
    return parts


def _train(samples: list[Samples], steps: int) -> Network:
    """One network from scratch, the learning rate in three steps down."""
    model = CostModel(Network(seed=0))
    for workload in samples:
        for features, seconds in workload.parts:
            model.remember(workload.key, features, seconds)
    rows = [
        torch.nn.functional.pad(x, (0, 0, 0, 0)) for s in samples for x in model.dataset.samples(s.key).log_features
    ]
    model.network.standardise(torch.cat(rows)[:, None, :])
    rng = np.random.default_rng(0)
    for rate in (1e-3, 3e-4, 1e-4):
        options = Training(steps=steps // 3, tasks=8, samples=48, learning_rate=rate, decay=1e-3)
        print(f"loss {train(model.network, model.dataset, rng, options=options):.3f} at rate {rate}", flush=True)
    return model.network


def _judge(network: Network, workload: Samples) -> dict[str, Any]:
    """Of an unseen workload: is the order right, and how good are the candidates predicted best?"""
    model = CostModel(network, pretrained=True)
    scores = np.concatenate([model.predict(features) for features, _ in workload.parts])
    seconds = np.concatenate([np.array(s) for _, s in workload.parts])
    finite = np.isfinite(seconds)
    scores, seconds = scores[finite], seconds[finite]
    order = np.argsort(-scores)
    best = float(seconds.min())
    ranks = np.corrcoef(_ranks(scores), _ranks(-seconds))[0, 1]
    return {
        "workload": workload.name,
        "samples": len(seconds),
        "rank_correlation": float(ranks),
        "top_1": best / float(seconds[order[0]]),
        "top_5": best / float(seconds[order[:5]].min()),
        "random": best / float(np.median(seconds)),
    }


def _ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values))


def _text(counts: dict[str, int], rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{counts['samples']} measurements of {counts['workloads']} workloads; {counts['held_out']} of them held out "
        "and judged by a model that never saw them. top-1, top-5: latency of the best candidate over that of the (best "
        "of the five) predicted best; median: over that of the median candidate.",
        "",
        "| held-out workload | candidates | rank correlation | top-1 | top-5 | median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r['workload']} | {r['samples']} | {r['rank_correlation']:.2f} | {r['top_1']:.2f} | {r['top_5']:.2f} "
        f"| {r['random']:.2f} |"
        for r in rows
    ]
    means = {k: statistics.fmean(r[k] for r in rows) for k in ("rank_correlation", "top_1", "top_5", "random")}
    lines += [
        "",
        f"Means: rank correlation **{means['rank_correlation']:.2f}**, top-1 **{means['top_1']:.2f}**, "
        f"top-5 **{means['top_5']:.2f}**, median candidate {means['random']:.2f}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
