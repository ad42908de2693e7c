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

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from felixlike._util import option_checks
from felixlike._util.spent import on
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.features import NAMES
from felixlike.search.checks import checked
from felixlike.search.rounding import LogPoints
from felixlike.smooth import Relaxed, Stacked, together
from felixlike.smooth.kernels import STEPS
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.variables import groups

_SMALL = 1e-8
"""Added to the variance of the networks' scores, whose root has no slope at 0."""


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
        caution: Number of standard deviations of the ensemble subtracted from the score: the descent avoids points on
            which the networks disagree.

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
    caution: float = 0.0

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
            caution=0.0,
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


class _Trajectories:
    """The state of the trajectories from all starts, as tensors padded to the most seeds and variables of a start."""

    def __init__(self, starts: Sequence[Start], coordinates: Sequence[_Coordinates]) -> None:
        self.starts = starts
        self.width = max(start.relaxed.width for start in starts)
        self._excess = [
            (place, excess)
            for place, start in enumerate(starts)
            if (excess := start.relaxed.excess(start.locations)) is not None
        ]
        counts = [len(start.seeds) for start in starts]
        self._real = torch.arange(max(counts)) < torch.tensor(counts)[:, None]  # the others are padding
        self._base = _padded([c.base for c in coordinates])
        self._spread = _padded([c.spread for c in coordinates])
        self._lower = _padded([c.lower[None] for c in coordinates])
        self._upper = _padded([c.upper[None] for c in coordinates], math.inf)
        self._bounded = _padded([c.bounded[None].double() for c in coordinates])
        pushed = [
            c.start + torch.from_numpy(start.noise) @ c.spread.abs().T * 0.5
            for c, start in zip(coordinates, starts, strict=True)
        ]
        self.z = _padded(pushed).requires_grad_(True)
        self.points: list[list[LogPoints]] = [[] for _ in starts]
        self.lost = torch.zeros(self._real.shape, dtype=torch.bool)  # seeds with a non-finite gradient

    @cached_property
    def _smooth(self) -> Stacked:
        """Return the torch code of all starts' structures."""
        return together([(start.relaxed, start.locations) for start in self.starts])

    def log_x(self) -> Tensor:
        """Return the current relaxed points, float64[starts, seeds, variables]."""
        return torch.baddbmm(self._base, self.z, self._spread)

    def keep(self) -> None:
        """Record the current relaxed points."""
        with torch.no_grad():
            log_x = self.log_x().numpy()
        for start, points, here in zip(self.starts, self.points, log_x, strict=True):
            points.append(here[: len(start.seeds), : len(start.sketch.variables)].copy())

    def scores(self, model: CostModel, task: str | None, width: float, options: Descent) -> Tensor:
        """Return the differentiable scores of the relaxed points, float64[all seeds]."""
        log_x = self.log_x().to(self.starts[0].relaxed.dtype)
        features = self._smooth(log_x, width, options.step_kernel)
        rows = features.reshape(*features.shape[:2], -1, len(NAMES))[self._real]
        scores = model.score(rows, task).double()
        mean = scores.mean(dim=0)
        if not options.caution:
            return mean
        return mean - options.caution * (scores.var(dim=0, correction=0) + _SMALL).sqrt()

    def pulled_back(self, width: float) -> Tensor | None:
        """Return the gradient of the violation, of the shape of z; None if no constraint is violated."""
        log_x = self.log_x()
        low = torch.relu(self._lower - log_x) * self._bounded
        high = torch.relu(log_x - self._upper)
        violation = (low * low + high * high).sum(dim=2)[self._real].sum()
        for place, excess in self._excess:
            start = self.starts[place]
            here = log_x[place, : len(start.seeds), : len(start.sketch.variables)]
            violation = violation + torch.relu(excess(here, width)).square().sum()
        if not violation > 0:
            return None
        (gradient,) = torch.autograd.grad(violation, self.z)
        return gradient


def _padded(tensors: Sequence[Tensor], value: float = 0.0) -> Tensor:
    """Stack matrices, padded to the largest number of rows and of columns: [matrices, rows, columns]."""
    rows, columns = (max(tensor.shape[dim] for tensor in tensors) for dim in (0, 1))
    return torch.stack(
        [nn.functional.pad(t, (0, columns - t.shape[1], 0, rows - t.shape[0]), value=value) for t in tensors]
    )


@on("descending")
@default_modes()
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
    points = [walk.relaxed.log_points(walk.seeds).numpy() for walk in walks]
    coordinates = [
        _Coordinates(walk.sketch, torch.from_numpy(seeds)) for walk, seeds in zip(walks, points, strict=True)
    ]
    moving = [i for i, each in enumerate(coordinates) if each.start.shape[1]]
    if not moving:
        return points
    trajectories = _Trajectories([walks[i] for i in moving], [coordinates[i] for i in moving])
    trajectories.keep()
    _optimize(trajectories, model, options, task)
    for place, i in enumerate(moving):
        points[i] = np.concatenate(trajectories.points[place])
        if lost := int(trajectories.lost[place].sum()):
            what = f"the gradients of {lost} of {len(walks[i].seeds)} seeds were not finite at some step"
            warnings.warn(f"{walks[i].sketch}: {what}", RuntimeWarning, stacklevel=2)
    return points


def _optimize(trajectories: _Trajectories, model: CostModel, options: Descent, task: str | None) -> None:
    """Run the Adam steps and record the points on the way."""
    optimizer = _Adam([trajectories.z])
    for step in range(options.steps):
        done = step / max(1, options.steps - 1)
        width = trajectories.width * options.blur ** (1.0 - done)
        scores = trajectories.scores(model, task, width, options)
        (gradient,) = torch.autograd.grad(-scores.sum(), trajectories.z)
        back = trajectories.pulled_back(width)
        if back is not None:
            scale = gradient.norm(dim=2, keepdim=True) if options.scaled_penalty else 1.0
            gradient = gradient + options.penalty * scale * back
        trajectories.lost |= ~gradient.isfinite().all(dim=2)
        # One NaN would stay in Adam's moments for ever. With a zero instead, the seed continues by its momentum.
        # Seeds have separate gradients, so the others are unaffected. The exact formulas score all points later.
        gradient = torch.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        optimizer.step([gradient], options.learning_rate * options.cooled**done)
        if (step + 1) % options.keep_every == 0 or step + 1 == options.steps:
            trajectories.keep()


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
