"""Who is learned from and who is judged: splits by workload, never by candidate, and by operator.

In: workloads. Out: folds. A computation measured on two devices is on one side of a split with both; which side depends
on it alone, so that more data do not mix what was apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from felixlike.training.samples import Workload, by_operator

FOLDS = 5
"""Of the workloads one in so many is held out."""


def fold_of(workload: Workload, folds: int = FOLDS) -> int:
    """The fold that a workload is in."""
    return fold_of_identity(workload.identity, folds)


def fold_of_identity(identity: str, folds: int = FOLDS) -> int:
    """The fold that workloads of an identity are in."""
    digest = hashlib.sha256(identity.encode()).digest()
    return int.from_bytes(digest[:8], "little") % folds


def held_out(workloads: Sequence[Workload], fold: int = 0, folds: int = FOLDS) -> tuple[list[Workload], list[Workload]]:
    """(those to learn from, those held out)"""
    learned = [w for w in workloads if fold_of(w, folds) != fold]
    return learned, [w for w in workloads if fold_of(w, folds) == fold]


def without_operator(workloads: Sequence[Workload]) -> Iterator[tuple[str, list[Workload], list[Workload]]]:
    """(operator, all others to learn from, its workloads) for each operator, those with most workloads first."""
    groups = by_operator(workloads)
    for operator, members in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        others = [w for w in workloads if w.operator != operator]
        if others:
            yield operator, others, members
