"""The whole course from samples to weights: judged on what was held out, then trained on everything.

In: workloads. Out: `Course`: a network, its card, the tables. Three kinds of judgement: on a fifth of the workloads;
on each operator, by a network that has met none of its workloads; and, told apart in each, the workloads of one space.
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
"""Workloads of an operator that is left out for judging: fewer say little."""


@dataclass(slots=True)
class Course:
    """network: trained on everything.  card: what it was trained on, and the scores.  unseen: the held-out workloads.
    operators: (operator, its workloads' quality) by networks that had met none of them."""

    network: Network
    card: dict[str, Any]
    unseen: list[tuple[Workload, Quality]]
    operators: list[tuple[str, int, Quality]] = field(default_factory=list)

    def text(self) -> str:
        """The tables."""
        mean = mean_quality([quality for _, quality in self.unseen])
        parts = [summary_table("unseen workloads", [*operator_rows(self.unseen), ("all", len(self.unseen), mean)])]
        if self.operators:
            parts.append(summary_table("operator never seen", self.operators))
        return "\n\n".join(parts)


def course(
    workloads: Sequence[Workload], options: Fit, *, operators: bool = True, say: Callable[[str], None] = lambda _: None
) -> Course:
    """See the module's docstring."""
    learned, unseen = held_out(workloads)
    if not learned or not unseen:
        learned, unseen = list(workloads), []
    count = sum(map(len, workloads))
    say(f"{count} candidates of {len(workloads)} workloads; {len(unseen)} held out")
    stopped = best_steps(learned, options)
    say(f"best after {stopped.steps} steps")
    options = replace(options, steps=stopped.steps)
    found = judge(scorer(fit(learned, options).network), unseen)
    if found:
        say(f"unseen workloads: {_said(mean_quality([q for _, q in found]))}")
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
        "unseen": _numbers([q for _, q in found]),
        "operators": {name: asdict(quality) for name, _, quality in left_out},
    }
    return Course(network, card, found, left_out)


def _by_operator(
    workloads: Sequence[Workload], options: Fit, say: Callable[[str], None]
) -> list[tuple[str, int, Quality]]:
    rows = []
    for operator, others, members in without_operator(workloads):
        if len(members) < _OPERATOR_FEWEST:
            continue
        found = judge(scorer(fit(others, replace(options, members=1)).network), members)
        if found:
            rows.append((operator, len(found), mean_quality([q for _, q in found])))
            say(f"{operator} never seen: {_said(rows[-1][2])}")
    return rows


def data_hash(workloads: Sequence[Workload]) -> str:
    """The same for the same candidates with the same times, in whatever order they were read."""
    rows = sorted(
        f"{w.key} {w.device} {part.sketch} {point} {seconds!r}"
        for w in workloads
        for part in w.parts
        for point, seconds in zip(part.points.tolist(), part.seconds.tolist(), strict=True)
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _numbers(found: Sequence[Quality]) -> dict[str, float]:
    return asdict(mean_quality(found)) if found else {}


def _said(quality: Quality) -> str:
    return f"rank correlation {quality.rank:.2f}, top-1 {quality.top_1:.2f}, top-5 {quality.top_5:.2f}"
