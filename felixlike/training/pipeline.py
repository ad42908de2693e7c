"""Evaluate a cost model on held-out workloads, then train it on all of them.

The input is workloads. The output is a `Course` with a network, its card and tables of scores. There are two
evaluations: on a fifth of the workloads, and on each operator by a network that was trained without its workloads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import Any

from felixlike._version import __version__
from felixlike.costmodel import Network
from felixlike.features import VERSION
from felixlike.training.fit import Fit, best_steps, fit, scorer
from felixlike.training.samples import Workload
from felixlike.training.scores import Quality, judge, mean_quality
from felixlike.training.split import held_out, without_operator
from felixlike.training.tables import operator_rows, summary_table

_OPERATOR_FEWEST = 3
"""Smallest number of workloads of an operator that is evaluated unseen; chosen by hand, since fewer say little."""


@dataclass(slots=True)
class Course:
    """Result of the pipeline.

    Attributes:
        network: Network trained on all workloads.
        card: Its training data, options and scores.
        unseen: Held-out workloads with the quality on each.
        operators: (operator, number of workloads, mean quality) of networks that were trained without the operator.
    """

    network: Network
    card: dict[str, Any]
    unseen: list[tuple[Workload, Quality]]
    operators: list[tuple[str, int, Quality]] = field(default_factory=list)

    def text(self) -> str:
        """Return the tables of scores."""
        mean = mean_quality([quality for _, quality in self.unseen])
        parts = [summary_table("unseen workloads", [*operator_rows(self.unseen), ("all", len(self.unseen), mean)])]
        if self.operators:
            parts.append(summary_table("operator never seen", self.operators))
        return "\n\n".join(parts)


def course(
    workloads: Sequence[Workload], options: Fit, *, operators: bool = True, say: Callable[[str], None] = lambda _: None
) -> Course:
    """Run the pipeline: choose the number of steps, evaluate, and train on all workloads.

    Args:
        workloads: Training data, at least one workload.
        options: Options of training; `steps` is an upper limit.
        operators: Whether to evaluate each operator by a network that was trained without it.
        say: Called with a line of text at each stage.
    """
    learned, unseen = held_out(workloads)
    if not learned or not unseen:
        learned, unseen = list(workloads), []
    count = sum(map(len, workloads))
    say(f"{count} candidates of {len(workloads)} workloads; {len(unseen)} held out")
    validated = best_steps(learned, options)
    say(f"best after {validated.steps} steps")
    options = replace(options, steps=validated.steps)
    qualities = judge(scorer(fit(learned, options).network), unseen)
    if qualities:
        say(f"unseen workloads: {_said(mean_quality([q for _, q in qualities]))}")
    left_out = _by_operator(workloads, options, say) if operators else []
    network = fit(workloads, options).network
    card = {
        "felixlike": __version__,
        "torch": metadata.version("torch"),
        "features": VERSION,
        "kind": workloads[0].kind,
        "devices": sorted({w.device for w in workloads}),
        "workloads": len(workloads),
        "candidates": count,
        "data": data_hash(workloads),
        "fit": asdict(options),
        "unseen": _numbers([q for _, q in qualities]),
        "operators": {name: asdict(quality) for name, _, quality in left_out},
    }
    return Course(network, card, qualities, left_out)


def _by_operator(
    workloads: Sequence[Workload], options: Fit, say: Callable[[str], None]
) -> list[tuple[str, int, Quality]]:
    """Return (operator, number of workloads, mean quality) of networks that were trained without the operator."""
    rows = []
    for operator, others, members in without_operator(workloads):
        if len(members) < _OPERATOR_FEWEST:
            continue
        qualities = judge(scorer(fit(others, replace(options, members=1)).network), members)
        if qualities:
            rows.append((operator, len(qualities), mean_quality([q for _, q in qualities])))
            say(f"{operator} never seen: {_said(rows[-1][2])}")
    return rows


def data_hash(workloads: Sequence[Workload]) -> str:
    """Return a hash of the candidates and their times that does not depend on their order."""
    rows = sorted(
        f"{w.key} {w.device} {part.sketch} {point} {seconds!r}"
        for w in workloads
        for part in w.parts
        for point, seconds in zip(part.points.tolist(), part.seconds.tolist(), strict=True)
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _numbers(qualities: Sequence[Quality]) -> dict[str, float]:
    """Return the mean scores by name; {} if there are none."""
    return asdict(mean_quality(qualities)) if qualities else {}


def _said(quality: Quality) -> str:
    """Return the scores as text."""
    return f"rank correlation {quality.rank:.2f}, top-1 {quality.top_1:.2f}, top-5 {quality.top_5:.2f}"
