"""Adam on relaxed variables: from seeds downhill along the predicted latency, all seeds of all structures at once.

In: seeds (in groups that share their compute locations), smooth formulas, a cost model. Out: every relaxed point passed
on the way. Felix §3.4, Algorithm 1: objective −C(features(x)) + λ Σ max(g(x), 0)², variables x = e^x'. λ is scaled by
the length of the cost's gradient, so that it means the same for every task; steps and smoothing narrow on the way.

The free variables are the logarithms of all factors but the outermost of each loop, which is ln extent − the rest, so
that the product is right everywhere; and log(1 + steps) of the unroll limit. Compute locations stay as the seed has
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from felixlike.costmodel import CostModel
from felixlike.search.rounding import LogPoints
from felixlike.smooth import Relaxed
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups


@dataclass(frozen=True, slots=True)
class Descent:
    """steps: of Adam.  keep_every: relaxed points are kept every so many steps.  learning_rate: about how far a
    variable moves in the first step, in log units; in the last it is `cooled` times as far.  blur: how many times wider
    the smooth operators are in the first step than in the last.  penalty: λ, for gradients of the cost of length 1."""

    steps: int = 40
    keep_every: int = 5
    learning_rate: float = 0.1
    cooled: float = 0.3
    blur: float = 2.0
    penalty: float = 10.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seeds of one structure.  relaxed: the smooth formulas of their sketch.  seeds: int64[n, variables] with the same
    compute locations.  noise: float64[n, variables], added to the start (free variables only)."""

    relaxed: Relaxed
    seeds: Points
    noise: LogPoints

    @property
    def sketch(self) -> Sketch:
        """What the seeds are points of."""
        return self.relaxed.formulas.sketch

    @property
    def locations(self) -> tuple[int, ...]:
        """Where blocks are computed."""
        return tuple(self.seeds[0, list(self.sketch.location_columns)].tolist())

    def prepare(self) -> None:
        """Make the smooth formulas. Raises NoSmoothForm, UnsupportedSketch."""
        self.relaxed.of_structure(self.locations)
        self.relaxed.excess(self.locations)


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


class _Leg:
    """One walk under way."""

    def __init__(self, walk: Start) -> None:
        self.relaxed = walk.relaxed
        self.sketch = walk.sketch
        self.coordinates = _Coordinates(walk.sketch, walk.relaxed.log_points(walk.seeds))
        spread = self.coordinates.spread
        pushed = self.coordinates.start + torch.from_numpy(walk.noise) @ spread.abs().T * 0.5
        self.z = pushed.requires_grad_(True)
        self.excess = walk.relaxed.excess(walk.locations)
        self.kept: list[LogPoints] = []
        self.lost = torch.zeros(len(self.z), dtype=torch.bool)

    def keep(self) -> None:
        """Remember where the walk is."""
        with torch.no_grad():
            self.kept.append(self.coordinates.log_x(self.z).numpy().copy())

    def pulled_back(self, width: float) -> Tensor | None:
        """The gradient of the violation, float64[n, free]; None where nothing is violated."""
        log_x = self.coordinates.log_x(self.z)
        violation = self.coordinates.violation(log_x)
        if self.excess is not None:
            violation = violation + torch.relu(self.excess(log_x, width)).square().sum(dim=1)
        if not (violation > 0).any():
            return None
        (gradient,) = torch.autograd.grad(violation.sum(), self.z)
        return gradient


def descend(walks: Sequence[Start], model: CostModel, options: Descent, task: str | None = None) -> list[LogPoints]:
    """float64[kept, variables] for each walk: relaxed points on the way down from each seed, the seeds' own included.

    task: whose measurements correct the model.  All seeds of all walks go through the network together, as one batch.
    Warns of seeds that were not led all the way, since some gradient of theirs was no number."""
    legs = [_Leg(walk) for walk in walks]
    moving = [leg for leg in legs if leg.z.shape[1]]
    for leg in legs:
        leg.keep()
    if moving and options.steps:
        _walk(moving, model, options, task)
    for leg in moving:
        if leg.lost.any():
            what = f"the gradients of {int(leg.lost.sum())} of {len(leg.lost)} seeds were not finite at some step"
            warnings.warn(f"{leg.sketch}: {what}", RuntimeWarning, stacklevel=2)
    return [np.concatenate(leg.kept) for leg in legs]


def _walk(legs: Sequence[_Leg], model: CostModel, options: Descent, task: str | None) -> None:
    optimizer = _Adam([leg.z for leg in legs])
    for step in range(options.steps):
        done = step / max(1, options.steps - 1)
        gradients = []
        wider = options.blur ** (1.0 - done)
        for leg, gradient in zip(legs, _gradients(legs, model, task, wider), strict=True):
            back = leg.pulled_back(wider * leg.relaxed.width)
            if back is not None:
                gradient = gradient + options.penalty * gradient.norm(dim=1, keepdim=True) * back
            leg.lost |= ~gradient.isfinite().all(dim=1)
            # Adam would remember one NaN for ever. With a zero the seed coasts instead; each has a gradient of its own,
            # so the others do not notice, and all points are scored by the exact formulas in the end.
            gradients.append(torch.nan_to_num(gradient, posinf=0.0, neginf=0.0))
        optimizer.step(gradients, options.learning_rate * options.cooled**done)
        if (step + 1) % options.keep_every == 0 or step + 1 == options.steps:
            for leg in legs:
                leg.keep()


class _Adam:
    """Adam (Kingma & Ba 2015) with its usual decay rates.  PyTorch's class is not used, since the first of a process
    imports all of torch._dynamo, which takes two seconds; its function is."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._means, self._squares = ([torch.zeros_like(t) for t in tensors] for _ in range(2))
        self._steps = [torch.zeros(()) for _ in tensors]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], rate: float) -> None:
        """Change the tensors, in place, by float64 gradients of their shapes."""
        adam(
            self._tensors,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            foreach=False,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def _gradients(legs: Sequence[_Leg], model: CostModel, task: str | None, wider: float) -> list[Tensor]:
    """Of what is to be small, −score, float64[n, free] for each leg."""
    features = [leg.relaxed(leg.coordinates.log_x(leg.z), wider * leg.relaxed.width) for leg in legs]
    most = max(found.shape[1] for found in features)
    padded = [nn.functional.pad(found, (0, 0, 0, most - found.shape[1])) for found in features]
    scores = model.score(torch.cat(padded), task).mean(dim=0)
    return list(torch.autograd.grad(-scores.double().sum(), [leg.z for leg in legs]))
