"""Split workloads into training and evaluation sets, by workload (never by candidate) or by operator.

The input is workloads, the output folds. A computation that was measured on two devices is on one side of a split with
both. The side depends only on the computation, so additional data does not change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from felixlike.training.samples import Workload, by_operator

FOLDS = 5
"""Number of folds, of which one is held out; chosen by hand."""


def fold_of(workload: Workload, folds: int = FOLDS) -> int:
    """Return the fold of a workload."""
    return fold_of_identity(workload.identity, folds)


def fold_of_identity(identity: str, folds: int = FOLDS) -> int:
    """Return the fold of workloads with an identity."""
    digest = hashlib.sha256(identity.encode()).digest()
    return int.from_bytes(digest[:8], "little") % folds


def held_out(workloads: Sequence[Workload], fold: int = 0, folds: int = FOLDS) -> tuple[list[Workload], list[Workload]]:
    """Return (training workloads, held-out workloads)."""
    learned = [w for w in workloads if fold_of(w, folds) != fold]
    return learned, [w for w in workloads if fold_of(w, folds) == fold]


def without_operator(workloads: Sequence[Workload]) -> Iterator[tuple[str, list[Workload], list[Workload]]]:
    """Yield (operator, workloads of all other operators, its workloads), operators with most workloads first."""
    groups = by_operator(workloads)
    for operator, members in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        others = [w for w in workloads if w.operator != operator]
        if others:
            yield operator, others, members
