"""What the network is trained to do: put candidates of a task in the right order, and their distances about right.

In: scores and labels of samples, task by task. Out: a number to minimise, the mean over the tasks. All parts ignore a
constant added to all scores of a task, which no measurement of that task can tell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from felixlike._util import option_checks

_SHARPNESS = 4.0
"""Candidates a quarter slower than the best count for 1/e of it in `best_loss`."""

_BEST = 0.25
"""Weight of `best_loss` beside the others. On 66 unseen workloads of an H100: top-1 0.850 with it, 0.835 without, rank
correlation 0.813 and 0.816 (one member, 1,200 steps); other weights were not tried."""


def ranking_loss(scores: Tensor, labels: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean over pairs of |Δlabel| · log(1 + exp(−sign(Δlabel) · Δscore)).

    scores: [members, tasks, n].  labels, present: [tasks, n], present 1 where there is a sample (None: everywhere)."""
    there = torch.ones_like(labels) if present is None else present
    difference = labels[:, :, None] - labels[:, None, :]
    scored = scores[..., :, None] - scores[..., None, :]
    weight = difference.abs() * there[:, :, None] * there[:, None, :]
    losses = torch.nn.functional.softplus(-difference.sign() * scored) * weight
    of_task = losses.sum((-2, -1)) / weight.sum((-2, -1)).clamp(min=1e-6)
    return of_task.mean()


def regression_loss(scores: Tensor, labels: Tensor, present: Tensor | None = None) -> Tensor:
    """Huber loss of centred scores against centred labels.  See `ranking_loss`."""
    there = torch.ones_like(labels) if present is None else present
    count = there.sum(dim=-1, keepdim=True).clamp(min=1.0)
    centred = scores - (scores * there).sum(dim=-1, keepdim=True) / count
    wanted = labels - (labels * there).sum(dim=-1, keepdim=True) / count
    losses = torch.nn.functional.huber_loss(centred, wanted.expand_as(centred), reduction="none") * there
    return (losses.sum(dim=-1) / count[..., 0]).mean()


def best_loss(scores: Tensor, labels: Tensor, present: Tensor | None = None) -> Tensor:
    """Cross entropy between softmax(4 · labels) and softmax(4 · scores): which candidates are the best ones (ListNet,
    Cao et al. 2007, with a temperature).  See `ranking_loss`."""
    missing = torch.zeros_like(labels) if present is None else (1.0 - present) * -1e9
    wanted = torch.softmax(_SHARPNESS * labels + missing, dim=-1)
    got = torch.log_softmax(_SHARPNESS * scores + missing, dim=-1)
    return -(wanted * got).sum(dim=-1).mean()


def anchor_loss(scores: Tensor, before: Tensor) -> Tensor:
    """Huber loss of centred scores against what they were before any measurement, [members, n] both.

    A search measures what it believes to be good. Training on that alone, a model forgets what bad candidates look like
    (measured: rank correlation on an unseen task 0.58 before, 0.16 after 16 such samples; 0.59 with this term)."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    return torch.nn.functional.huber_loss(centred, before - before.mean(dim=1, keepdim=True))


LOSSES = ("ranking", "regression", "both", "all")
"""What `loss` may consist of: one part, ranking and regression, or these and `best_loss`."""


def loss(scores: Tensor, labels: Tensor, present: Tensor | None = None, *, parts: str = "all") -> Tensor:
    """The parts of scores [members, tasks, n] for labels [tasks, n].  Raises InvalidOption for others than `LOSSES`."""
    option_checks.one_of(parts, "loss", LOSSES, what="a loss")
    total = scores.new_zeros(())
    if parts != "regression":
        total = total + ranking_loss(scores, labels, present)
    if parts != "ranking":
        total = total + regression_loss(scores, labels, present)
    if parts == "all":
        total = total + _BEST * best_loss(scores, labels, present)
    return total
