"""Evaluate the cost model: python -m benchmarks.costmodel [--kind cpu|cuda] [--ablation] [--tvm] [--folds 1].

Workloads are split by what they compute. Each model is trained on the training folds and ranks the measured
candidates of the held-out workloads (`felixlike.training.scores` defines the metrics). The baselines are the
untrained model, the model without trees, xgboost and a random forest. The benchmark also measures how well the model
ranks operators of which no workload was in the training data, and how much the first measured candidates of a
workload improve the ranking of the rest, also across families of CPUs. It writes docs/results/costmodel.json and .md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import learning
from benchmarks.learning import SHOTS
from benchmarks.predictors import Predictor, cold, forest, network, ours, ours_per_operation, tvms, xgboost
from benchmarks.results import write
from felixlike.training.fit import Fit, fit, scorer
from felixlike.training.packed import opened
from felixlike.training.samples import Samples, Workload, read, restored
from felixlike.training.scores import Quality, judge, mean_quality
from felixlike.training.split import held_out, without_operator
from felixlike.training.tables import operator_rows, summary_table

_DATA = Path(__file__).resolve().parent.parent / "data"
_STORES = {
    "cpu": ("measurements-cpu.sqlite.xz", "measurements-cpu-intel.sqlite.xz", "measurements-cpu-zen3.sqlite.xz"),
    "cuda": ("measurements-h100.sqlite.xz",),
}
Judged = list[tuple[Workload, Quality]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("cpu", "cuda", "all"), default="all")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folds", type=int, default=2, help="of five, so many are held out in turn")
    parser.add_argument("--ablation", action="store_true", help="also our network with parts of it changed")
    parser.add_argument("--tvm", action="store_true", help="also xgboost on TVM's features (minutes)")
    parser.add_argument("--store", action="append", help="in place of those in data/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are so small that a second thread costs more than it saves
    texts, data = [], {}
    for kind in ("cpu", "cuda") if arguments.kind == "all" else (arguments.kind,):
        result = _evaluate_kind(kind, arguments)
        data[kind] = result["data"]
        texts.append(result["text"])
    name = "costmodel" if arguments.kind == "all" else f"costmodel-{arguments.kind}"
    write(name, data, "\n\n".join(texts), command="costmodel")


def _evaluate_kind(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    samples, tasks = _samples(kind, arguments.store)
    spaces = _spaces(samples.workloads)
    options = Fit(steps=arguments.steps)
    trees: list[Predictor] = [
        cold(),
        xgboost("xgboost, regression", ours, ranking=False),
        xgboost("xgboost, ranking", ours, ranking=True),
        xgboost("xgboost, counts per operation too", ours_per_operation, ranking=False),
        forest("random forest", ours),
    ]
    if arguments.tvm:
        tvm_features = tvms(Path("out") / "tvm-features", tasks)
        trees.append(xgboost("xgboost on TVM's features", tvm_features, ranking=True))
    without_trees = network("ours without trees", replace(options, trees=0))
    predictors = [network("ours", options), without_trees, *trees, *(_ablation(options) if arguments.ablation else [])]
    compared: dict[str, dict[str, Judged]] = {}
    for predictor in predictors:
        started = time.monotonic()
        compared[predictor.name] = _cross_judged(predictor, samples.workloads, spaces, arguments.folds)
        for space, judged in compared[predictor.name].items():
            _print_quality(
                kind, f"{predictor.name}, {space}", mean_quality([q for _, q in judged]), time.monotonic() - started
            )
    operators = _operators(samples.workloads, replace(options, members=1))
    taught = learning.taught(samples.workloads, spaces.get("MetaSchedule's space", []), options)
    transfer = _transfer(samples.workloads, options) if kind == "cpu" else {}
    count = f"{len(samples)} measured candidates of {len(samples.workloads)} workloads"
    text = [f"## {kind}: {count}", _compared_text(compared)]
    text.append(summary_table("ours, by operator", operator_rows(next(iter(compared["ours"].values())))))
    text.append(summary_table("operator never seen", operators))
    text.append(learning.text(taught))
    if transfer:
        text.append(_transfer_text(transfer))
    return {
        "text": "\n\n".join(text),
        "data": {
            "workloads": len(samples.workloads),
            "candidates": len(samples),
            "left_out": dict(samples.left_out),
            "compared": {
                name: {space: asdict(mean_quality([q for _, q in judged])) for space, judged in by_space.items()}
                for name, by_space in compared.items()
            },
            "operators": {name: asdict(quality) for name, _, quality in operators},
            "taught": taught,
            "transfer": transfer,
        },
    }


def _samples(kind: str, store_paths: Sequence[str] | None) -> tuple[Samples, dict[str, Any]]:
    paths = [Path(p) for p in store_paths] if store_paths else [_DATA / name for name in _STORES[kind]]
    with ExitStack() as stack:
        stores = [stack.enter_context(opened(path)) for path in paths if path.exists()]
        tasks = {w.task: restored(w) for store in stores for w in store.workloads()}
        return read(stores, kind=kind), tasks


def _spaces(workloads: Sequence[Workload]) -> dict[str, list[Workload]]:
    """Return the workloads of each space, and of both spaces together if there are two."""
    by_space: dict[str, list[Workload]] = {"MetaSchedule's space": [], "our space": []}
    for workload in workloads:
        for name, is_own in (("MetaSchedule's space", False), ("our space", True)):
            parts = tuple(part for part in workload.parts if part.own == is_own)
            if parts:
                by_space[name].append(replace(workload, parts=parts))
    non_empty = {name: members for name, members in by_space.items() if members}
    return non_empty if len(non_empty) == 1 else {"both spaces": list(workloads), **non_empty}


def _cross_judged(
    predictor: Predictor, workloads: Sequence[Workload], spaces: dict[str, list[Workload]], folds: int
) -> dict[str, Judged]:
    """Judge a predictor on held-out workloads of each space."""
    judged: dict[str, Judged] = {space: [] for space in spaces}
    for fold in range(folds):
        score = predictor.learn(held_out(workloads, fold=fold)[0])
        for space, members in spaces.items():
            judged[space] += judge(score, held_out(members, fold=fold)[1])
    return judged


def _ablation(options: Fit) -> list[Predictor]:
    """Return predictors that each differ from the default network in one option."""
    return [
        network("one member", replace(options, members=1)),
        network("five members", replace(options, members=5)),
        network("96 wide", replace(options, width=96)),
        network("384 wide", replace(options, width=384)),
        network("ranking loss alone", replace(options, loss="ranking")),
        network("regression loss alone", replace(options, loss="regression")),
        network("without the loss of the best", replace(options, loss="both")),
        network("a third of the steps", replace(options, steps=options.steps // 3)),
    ]


def _operators(workloads: Sequence[Workload], options: Fit) -> list[tuple[str, int, Quality]]:
    rows = []
    for operator, others, members in without_operator(workloads):
        if len(members) >= 3:
            judged = judge(scorer(fit(others, options).network), members)
            rows.append((operator, len(judged), mean_quality([q for _, q in judged])))
            _print_quality("", f"{operator} never seen", rows[-1][2], 0.0)
    return rows


def _transfer(workloads: Sequence[Workload], options: Fit) -> dict[str, dict[str, list[float]]]:
    """Train on one family of CPUs and judge on another after some candidates of each workload were measured there.

    The first word of a device's name is its family (Intel, AMD). Return, for every number of measured candidates, the
    mean rank correlation and top-1 on the other candidates. The baseline is a model trained on workloads of the same
    family.
    """
    families = sorted({workload.device.split("(")[0].split()[0] for workload in workloads})
    results: dict[str, dict[str, list[float]]] = {}
    for family in families if len(families) > 1 else ():
        family_workloads = [w for w in workloads if w.device.startswith(family)]
        other_workloads = [w for w in workloads if not w.device.startswith(family)]
        learned, unseen = held_out(family_workloads)
        judged_on = [w for w in unseen if w.measured > 2 * SHOTS[-1]]
        if len(judged_on) < 3:
            continue
        disjoint = [w for w in other_workloads if w.identity not in {u.identity for u in unseen}]
        for name, base in (
            (f"trained elsewhere, judged on {family}", disjoint),
            (f"trained and judged on {family}", learned),
        ):
            trained = fit(base, options).network
            results[name] = {"rank": [], "top_1": []}
            for shots in SHOTS:
                mean, _ = learning.after(trained, judged_on, shots)
                results[name]["rank"].append(mean.rank)
                results[name]["top_1"].append(mean.top_1)
                _print_quality("", f"{name}, {shots} candidates", mean, 0.0)
    return results


def _compared_text(compared: dict[str, dict[str, Judged]]) -> str:
    spaces = list(next(iter(compared.values())))
    parts = []
    for space in spaces:
        rows = [
            (name, len(judged[space]), mean_quality([q for _, q in judged[space]])) for name, judged in compared.items()
        ]
        parts.append(f"### {space}\n\n" + summary_table("model", rows))
    return "\n\n".join(parts)


def _transfer_text(transfer: dict[str, dict[str, list[float]]]) -> str:
    lines = [
        "### Another family of CPUs",
        "",
        "Rank correlation / top-1 on the other candidates of unseen workloads, after so many were measured:",
        "",
        f"| | {' | '.join(map(str, SHOTS))} |",
        f"| --- |{' --- |' * len(SHOTS)}",
    ]
    for name, results in transfer.items():
        cells = [f"{rank:.2f} / {top:.2f}" for rank, top in zip(results["rank"], results["top_1"], strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _print_quality(kind: str, label: str, quality: Quality, seconds: float) -> None:
    print(
        f"{kind} {label}: rank {quality.rank:.3f}, top-1 {quality.top_1:.3f}, top-5 {quality.top_5:.3f}, "
        f"median {quality.median:.2f} ({seconds:.0f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
