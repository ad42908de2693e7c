"""Adam on relaxed variables: from seeds downhill along the predicted latency, all seeds of one structure at once.

In: seeds (points that share their compute locations), smooth formulas, a cost model. Out: every relaxed point passed
on the way. Felix §3.4, Algorithm 1: objective −C(features(x)) + λ Σ max(g(x), 0)², variables x = e^x'.

The free variables are the logarithms of all factors but the outermost of each loop, which is ln extent − the rest, so
that the product is right everywhere; and log(1 + steps) of the unroll limit. Compute locations stay as the seed has
them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from felixlike.costmodel import CostModel
from felixlike.search.rounding import LogPoints
from felixlike.smooth import Relaxed
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups


@dataclass(frozen=True, slots=True)
class Descent:
    """steps: of Adam.  keep_every: relaxed points are kept every so many steps.  penalty: λ.
    learning_rate: about how far a variable moves in one step, in log units."""

    steps: int = 40
    keep_every: int = 5
    learning_rate: float = 0.1
    penalty: float = 10.0


class _Coordinates:
    """Between free variables z and the columns of a sketch: log_x = base + z · spread."""

    def __init__(self, sketch: Sketch, start: Tensor) -> None:
        width = len(sketch.variables)
        rows: list[Tensor] = []
        free: list[int] = []
        base = start.clone()
        upper = torch.full((width,), float("inf"), dtype=torch.float64)
        lower = torch.zeros(width, dtype=torch.float64)
        for _, columns in groups(sketch.variables):
            members = [sketch.variables[c] for c in columns]
            if members[0].kind is Kind.LOCATION or all(m.fixed for m in members):
                upper[list(columns)] = float("inf")
                continue
            moving = columns[1:] if members[0].kind is Kind.TILE else columns
            for column in moving:
                direction = torch.zeros(width, dtype=torch.float64)
                direction[column] = 1.0
                if members[0].kind is Kind.TILE:
                    direction[columns[0]] = -1.0
                rows.append(direction)
                free.append(column)
                base[:, column] = 0.0
            if members[0].kind is Kind.TILE:
                base[:, columns[0]] = float(np.log(members[0].extent))
                upper[columns[-1]] = float(np.log(members[-1].choices[-1]))
            else:
                lower[columns[0]], upper[columns[0]] = members[0].log(members[0].choices)[[0, -1]].tolist()
        self.bounded = torch.tensor([v.kind is not Kind.LOCATION for v in sketch.variables])
        self.spread = torch.stack(rows) if rows else torch.zeros(0, width, dtype=torch.float64)
        self.base, self.upper, self.lower = base, upper, lower
        self.start = start[:, free].clone()

    def log_x(self, z: Tensor) -> Tensor:
        """float64[n, variables] for float64[n, free]."""
        return self.base + z @ self.spread

    def violation(self, log_x: Tensor) -> Tensor:
        """float64[n]: Σ max(g, 0)² over the smallest and the largest values variables may take."""
        low = torch.relu(self.lower - log_x) * self.bounded
        high = torch.relu(log_x - self.upper)
        return (low * low + high * high).sum(dim=1)


def descend(
    relaxed: Relaxed, model: CostModel, sketch: Sketch, seeds: Points, *, noise: LogPoints, options: Descent
) -> LogPoints:
    """float64[kept, variables]: relaxed points on the way down from each seed, the seeds' own included.

    seeds: int64[n, variables] with the same compute locations.  noise: float64[n, variables], added to the start (free
    variables only).  Warns of seeds that were not led all the way, since some gradient of theirs was no number."""
    start = relaxed.log_points(seeds)
    coordinates = _Coordinates(sketch, start)
    if not len(coordinates.spread):
        return start.numpy()
    pushed = coordinates.start + torch.from_numpy(noise) @ coordinates.spread.abs().T * 0.5
    z = pushed.requires_grad_(True)
    excess = relaxed.excess(tuple(seeds[0, list(sketch.location_columns)].tolist()))
    optimizer = torch.optim.Adam([z], lr=options.learning_rate)
    kept: list[LogPoints] = []
    lost = torch.zeros(len(z), dtype=torch.bool)
    for step in range(options.steps):
        optimizer.zero_grad()
        log_x = coordinates.log_x(z)
        scores = model.score(relaxed(log_x)).mean(dim=0)
        violation = coordinates.violation(log_x)
        if excess is not None:
            violation = violation + torch.relu(excess(log_x, relaxed.width)).square().sum(dim=1)
        objective = -scores.double() + options.penalty * violation
        (gradient,) = torch.autograd.grad(objective.sum(), z)
        lost |= ~gradient.isfinite().all(dim=1)
        # Adam would remember one NaN for ever. With a zero the seed coasts instead; each has a gradient of its own, so
        # the others do not notice, and all points are scored by the exact formulas in the end.
        z.grad = torch.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        if step % options.keep_every == 0:
            kept.append(log_x.detach().numpy().copy())
        optimizer.step()
    kept.append(coordinates.log_x(z).detach().numpy().copy())
    if lost.any():
        text = f"{sketch}: the gradients of {int(lost.sum())} of {len(lost)} seeds were not finite at some step"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return np.concatenate(kept)
