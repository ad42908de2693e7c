"""Minimize the predicted latency by Adam on relaxed variables, for all seeds of all structures at once.

Inputs: seeds, grouped by compute locations, their smooth formulas and a cost model. Output: the relaxed points of every
trajectory. Felix §3.4, Algorithm 1: the objective is −C(features(x)) + λ Σ max(g(x), 0)², with variables x = e^x'. By
default λ is scaled by the norm of the cost's gradient, so that it has the same effect for every task, and the step size
and the width of the smooth operators decrease over the steps.

The free variables are log(1 + steps) of the unroll limit and the logarithms of all tile factors except the outermost of
each loop. The outermost is ln extent minus the others, so the product of the factors always equals the extent. Compute
locations are fixed by the seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from felixlike._util import option_checks
from felixlike._util.spent import on
from felixlike.costmodel import CostModel
from felixlike.search.checks import checked
from felixlike.search.rounding import LogPoints
from felixlike.smooth import Relaxed
from felixlike.smooth.kernels import STEPS
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups


@dataclass(frozen=True, slots=True)
class Descent:
    """Options of the gradient descent; the defaults are chosen by hand.

    Attributes:
        steps: Number of Adam steps.
        keep_every: Relaxed points are recorded after every `keep_every` steps, and after the last one.
        learning_rate: Learning rate of the first step: approximate change of a variable, in log units.
        cooled: Learning rate of the last step relative to the first.
        blur: Width of the smooth operators in the first step relative to the last.
        penalty: λ; for a gradient of the cost with norm 1, if it is scaled.
        scaled_penalty: Whether λ is multiplied by the norm of the cost's gradient. Without, λ is fixed as in Felix's
            equation 4.
        step_kernel: How steps of the features are smoothed: "algebraic", or "cauchy" for Felix's own kernel
            (docs/concepts/smoothing.md). Constraints have algebraic steps.

    Raises:
        InvalidOption: A value is out of range.
    """

    steps: int = 40
    keep_every: int = 5
    learning_rate: float = 0.1
    cooled: float = 0.3
    blur: float = 2.0
    penalty: float = 10.0
    scaled_penalty: bool = True
    step_kernel: str = "algebraic"

    def __post_init__(self) -> None:
        checked(
            self,
            steps=0,
            keep_every=1,
            learning_rate=0.0,
            cooled=0.0,
            blur=0.0,
            penalty=0.0,
            scaled_penalty=bool,
        )
        option_checks.one_of(self.step_kernel, "step_kernel", STEPS, what="a kernel")


@dataclass(frozen=True, slots=True)
class Start:
    """The seeds of one structure.

    Attributes:
        relaxed: Smooth formulas of the seeds' sketch.
        seeds: int64[n, variables], all with the same compute locations.
        noise: float64[n, variables], added to the free variables at the start.
    """

    relaxed: Relaxed
    seeds: Points
    noise: LogPoints

    @property
    def sketch(self) -> Sketch:
        """Return the sketch that the seeds are points of."""
        return self.relaxed.sketch

    @property
    def locations(self) -> tuple[int, ...]:
        """Return the compute locations of the seeds."""
        return tuple(self.seeds[0, list(self.sketch.location_columns)].tolist())

    def prepare(self) -> None:
        """Build the smooth formulas.

        Raises:
            NoSmoothForm: No smoothing rule covers a formula.
            UnsupportedSketch: The sketch has no formulas.
        """
        self.relaxed.of_structure(self.locations)
        self.relaxed.excess(self.locations)


class _Coordinates:
    """Map free variables z to the columns of a sketch: log_x = base + z · spread."""

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
        """Map float64[n, free] to float64[n, variables]."""
        return self.base + z @ self.spread

    def violation(self, log_x: Tensor) -> Tensor:
        """Return float64[n]: Σ max(g, 0)² over the lower and upper bounds of the variables."""
        low = torch.relu(self.lower - log_x) * self.bounded
        high = torch.relu(log_x - self.upper)
        return (low * low + high * high).sum(dim=1)


class _Trajectories:
    """The state of the trajectories from one `Start`."""

    def __init__(self, start: Start) -> None:
        self.relaxed = start.relaxed
        self.sketch = start.sketch
        self.coordinates = _Coordinates(start.sketch, start.relaxed.log_points(start.seeds))
        spread = self.coordinates.spread
        pushed = self.coordinates.start + torch.from_numpy(start.noise) @ spread.abs().T * 0.5
        self.z = pushed.requires_grad_(True)
        self.excess = start.relaxed.excess(start.locations)
        self.points: list[LogPoints] = []
        self.lost = torch.zeros(len(self.z), dtype=torch.bool)  # seeds with a non-finite gradient

    def keep(self) -> None:
        """Record the current relaxed points."""
        with torch.no_grad():
            self.points.append(self.coordinates.log_x(self.z).numpy().copy())

    def pulled_back(self, width: float) -> Tensor | None:
        """Return the gradient of the violation, float64[n, free]; None if no constraint is violated."""
        log_x = self.coordinates.log_x(self.z)
        violation = self.coordinates.violation(log_x)
        if self.excess is not None:
            violation = violation + torch.relu(self.excess(log_x, width)).square().sum(dim=1)
        if not (violation > 0).any():
            return None
        (gradient,) = torch.autograd.grad(violation.sum(), self.z)
        return gradient


@on("descending")
def descend(walks: Sequence[Start], model: CostModel, options: Descent, task: str | None = None) -> list[LogPoints]:
    """Descend from all seeds and return the points recorded along the trajectories.

    The seeds of all structures are evaluated as one batch. A RuntimeWarning counts a sketch's seeds whose gradients
    were not finite at some step.

    Args:
        walks: The seeds, one `Start` per structure.
        model: The cost model.
        options: The options of the descent.
        task: Key of the task whose measurements correct the model; None for none.

    Returns:
        float64[recorded, variables] for each `Start`, with the seeds' own points first.
    """
    trajectories = [_Trajectories(walk) for walk in walks]
    moving = [trajectory for trajectory in trajectories if trajectory.z.shape[1]]
    for trajectory in trajectories:
        trajectory.keep()
    if moving and options.steps:
        _optimize(moving, model, options, task)
    for path in moving:
        if path.lost.any():
            what = f"the gradients of {int(path.lost.sum())} of {len(path.lost)} seeds were not finite at some step"
            warnings.warn(f"{path.sketch}: {what}", RuntimeWarning, stacklevel=2)
    return [np.concatenate(trajectory.points) for trajectory in trajectories]


def _optimize(trajectories: Sequence[_Trajectories], model: CostModel, options: Descent, task: str | None) -> None:
    """Run all Adam steps and record the points on the way."""
    optimizer = _Adam([trajectory.z for trajectory in trajectories])
    for step in range(options.steps):
        done = step / max(1, options.steps - 1)
        gradients = []
        wider = options.blur ** (1.0 - done)
        for trajectory, gradient in zip(
            trajectories, _gradients(trajectories, model, task, wider, options), strict=True
        ):
            back = trajectory.pulled_back(wider * trajectory.relaxed.width)
            if back is not None:
                scale = gradient.norm(dim=1, keepdim=True) if options.scaled_penalty else 1.0
                gradient = gradient + options.penalty * scale * back
            trajectory.lost |= ~gradient.isfinite().all(dim=1)
            # One NaN would stay in Adam's moments for ever. With a zero instead, the seed continues by its momentum.
            # Seeds have separate gradients, so the others are unaffected. The exact formulas score all points later.
            gradients.append(torch.nan_to_num(gradient, posinf=0.0, neginf=0.0))
        optimizer.step(gradients, options.learning_rate * options.cooled**done)
        if (step + 1) % options.keep_every == 0 or step + 1 == options.steps:
            for trajectory in trajectories:
                trajectory.keep()


class _Adam:
    """Adam (Kingma & Ba 2015) with the usual decay rates, by PyTorch's function.

    PyTorch's class is not used: its first instance in a process imports torch._dynamo, which takes 2 s."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._means, self._squares = ([torch.zeros_like(t) for t in tensors] for _ in range(2))
        self._steps = [torch.zeros(()) for _ in tensors]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], rate: float) -> None:
        """Update the tensors in place by float64 gradients of their shapes."""
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


def _gradients(
    trajectories: Sequence[_Trajectories], model: CostModel, task: str | None, wider: float, options: Descent
) -> list[Tensor]:
    """Return the gradients of −score, float64[n, free] for each of the trajectories."""
    features = [
        trajectory.relaxed(
            trajectory.coordinates.log_x(trajectory.z), wider * trajectory.relaxed.width, options.step_kernel
        )
        for trajectory in trajectories
    ]
    most = max(each.shape[1] for each in features)
    padded = [nn.functional.pad(each, (0, 0, 0, most - each.shape[1])) for each in features]
    scores = model.score(torch.cat(padded), task).mean(dim=0)
    return list(torch.autograd.grad(-scores.double().sum(), [trajectory.z for trajectory in trajectories]))
