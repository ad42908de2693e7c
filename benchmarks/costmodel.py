"""The cost model at its job alone: python -m benchmarks.costmodel [--kind cpu|cuda] [--ablation] [--tvm] [--folds 1].

Workloads are split by what they compute; each model learns from the others and orders the measured candidates of those
held out (`felixlike.training.scores` says what the figures mean). Beside ours: the same before it has seen anything,
without its trees, xgboost and a random forest. Then operators that no workload of was learned from, and what the first
candidates of a workload teach about the rest of it, also on another family of CPUs. Writes docs/results/costmodel.json
and .md.
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
    "cpu": ("measurements-cpu.sqlite.xz", "measurements-cpu-intel.sqlite.xz"),
    "cuda": ("measurements-h100.sqlite.xz",),
}
Judged = list[tuple[Workload, Quality]]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("cpu", "cuda", "all"), default="all")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folds", type=int, default=2, help="of five, so many are held out in turn")
    parser.add_argument("--ablation", action="store_true", help="also our network with parts of it changed")
    parser.add_argument("--tvm", action="store_true", help="also xgboost on TVM's features (minutes)")
    parser.add_argument("--store", action="append", help="in place of those in data/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are small: two threads spend their time on waiting for one another
    texts, data = [], {}
    for kind in ("cpu", "cuda") if arguments.kind == "all" else (arguments.kind,):
        found = _of_kind(kind, arguments)
        data[kind] = found["data"]
        texts.append(found["text"])
    name = "costmodel" if arguments.kind == "all" else f"costmodel-{arguments.kind}"
    write(name, data, "\n\n".join(texts), command="costmodel")


def _of_kind(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
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
        seen = tvms(Path("out") / "tvm-features", tasks)
        trees.append(xgboost("xgboost on TVM's features", seen, ranking=True))
    without = network("ours without trees", replace(options, trees=0))
    predictors = [network("ours", options), without, *trees, *(_ablation(options) if arguments.ablation else [])]
    compared: dict[str, dict[str, Judged]] = {}
    for predictor in predictors:
        started = time.monotonic()
        compared[predictor.name] = _cross_judged(predictor, samples.workloads, spaces, arguments.folds)
        for space, found in compared[predictor.name].items():
            _say(kind, f"{predictor.name}, {space}", mean_quality([q for _, q in found]), time.monotonic() - started)
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
                name: {space: asdict(mean_quality([q for _, q in found])) for space, found in by_space.items()}
                for name, by_space in compared.items()
            },
            "operators": {name: asdict(quality) for name, _, quality in operators},
            "taught": taught,
            "transfer": transfer,
        },
    }


def _samples(kind: str, given: Sequence[str] | None) -> tuple[Samples, dict[str, Any]]:
    paths = [Path(p) for p in given] if given else [_DATA / name for name in _STORES[kind]]
    with ExitStack() as stack:
        stores = [stack.enter_context(opened(path)) for path in paths if path.exists()]
        tasks = {w.task: restored(w) for store in stores for w in store.workloads()}
        return read(stores, kind=kind), tasks


def _spaces(workloads: Sequence[Workload]) -> dict[str, list[Workload]]:
    """The workloads whole, and, where there are both, of each space for itself: ours notes its loops itself."""
    apart: dict[str, list[Workload]] = {"MetaSchedule's space": [], "our space": []}
    for workload in workloads:
        for name, own in (("MetaSchedule's space", False), ("our space", True)):
            parts = tuple(part for part in workload.parts if part.own == own)
            if parts:
                apart[name].append(replace(workload, parts=parts))
    found = {name: members for name, members in apart.items() if members}
    return found if len(found) == 1 else {"both spaces": list(workloads), **found}


def _cross_judged(
    predictor: Predictor, workloads: Sequence[Workload], spaces: dict[str, list[Workload]], folds: int
) -> dict[str, Judged]:
    """What a predictor that learns from whole workloads is worth in each space."""
    found: dict[str, Judged] = {space: [] for space in spaces}
    for fold in range(folds):
        score = predictor.learn(held_out(workloads, fold=fold)[0])
        for space, members in spaces.items():
            found[space] += judge(score, held_out(members, fold=fold)[1])
    return found


def _ablation(options: Fit) -> list[Predictor]:
    """Ours with one thing changed at a time."""
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
            found = judge(scorer(fit(others, options).network), members)
            rows.append((operator, len(found), mean_quality([q for _, q in found])))
            _say("", f"{operator} never seen", rows[-1][2], 0.0)
    return rows


def _transfer(workloads: Sequence[Workload], options: Fit) -> dict[str, dict[str, list[float]]]:
    """Trained on one family of CPUs, judged on another after some candidates of each workload there.

    Devices are told apart by their names' first word (Intel, AMD). For every number of candidates seen: mean rank
    correlation and top-1 of the others, also of a model trained on workloads of that family itself."""
    families = sorted({workload.device.split("(")[0].split()[0] for workload in workloads})
    found: dict[str, dict[str, list[float]]] = {}
    for there in families if len(families) > 1 else ():
        at = [w for w in workloads if w.device.startswith(there)]
        elsewhere = [w for w in workloads if not w.device.startswith(there)]
        learned, unseen = held_out(at)
        judged_on = [w for w in unseen if w.measured > 2 * SHOTS[-1]]
        if len(judged_on) < 3:
            continue
        apart = [w for w in elsewhere if w.identity not in {u.identity for u in unseen}]
        for name, base in (
            (f"trained elsewhere, judged on {there}", apart),
            (f"trained and judged on {there}", learned),
        ):
            trained = fit(base, options).network
            found[name] = {"rank": [], "top_1": []}
            for shots in SHOTS:
                mean, _ = learning.after(trained, judged_on, shots)
                found[name]["rank"].append(mean.rank)
                found[name]["top_1"].append(mean.top_1)
                _say("", f"{name}, {shots} candidates", mean, 0.0)
    return found


def _compared_text(compared: dict[str, dict[str, Judged]]) -> str:
    spaces = list(next(iter(compared.values())))
    parts = []
    for space in spaces:
        rows = [
            (name, len(found[space]), mean_quality([q for _, q in found[space]])) for name, found in compared.items()
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
    for name, found in transfer.items():
        cells = [f"{rank:.2f} / {top:.2f}" for rank, top in zip(found["rank"], found["top_1"], strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _say(kind: str, what: str, quality: Quality, seconds: float) -> None:
    print(
        f"{kind} {what}: rank {quality.rank:.3f}, top-1 {quality.top_1:.3f}, top-5 {quality.top_5:.3f}, "
        f"median {quality.median:.2f} ({seconds:.0f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
