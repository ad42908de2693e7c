"""DietCode's micro-kernel cost model: what every program takes at every size, from two timings a uKernel.

In: seconds of each uKernel at one wave and at N waves. Out: a matrix [programs × instances]. A core works through
shares of the output; each costs a start (a panel of weights, a copy) and a time for each tile of its height:

    seconds = base + waves · depth · (α + Num₁ · τ₁ + Num₂ · τ₂),   waves = ⌈shares / cores⌉

α and τ of each height follow from its two timings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.combine import Combination
from felixlike.dynamic.ukernel import Floats, Workload


@dataclass(frozen=True, slots=True)
class Timing:
    """seconds: of a call.  workload: what it computed.  tiles: how many tiles its rows had."""

    seconds: float
    workload: Workload
    tiles: int


@dataclass(frozen=True, slots=True)
class Line:
    """A uKernel's cost in a share, seconds a step of the reduction.  alpha: of the share itself.  tau: of a tile."""

    alpha: float
    tau: float


@dataclass(frozen=True, slots=True)
class Waves:
    """How the output is divided.  columns: of a share.  cores: that work on shares.  base: seconds of a call that
    computes nothing."""

    columns: int
    cores: int
    base: float = 0.0

    def of(self, workload: Workload) -> float:
        """Shares that each core does, times the steps of their reduction."""
        shares = workload.batch * -(-workload.j // self.columns)
        return -(-shares // self.cores) * workload.k


def line(one: Timing, many: Timing, waves: Waves) -> Line:
    """What two timings say of a uKernel: at one tile a share, and at many."""
    first = max(one.seconds - waves.base, 1e-9) / waves.of(one.workload)
    second = max(many.seconds - waves.base, 1e-9) / waves.of(many.workload)
    if many.tiles == one.tiles:
        return Line(0.0, second / many.tiles)
    tau = max((second - first) / (many.tiles - one.tiles), second / many.tiles / 4)
    return Line(max(first - one.tiles * tau, 0.0), tau)


def predict(lines: Mapping[int, Line], combination: Combination, workload: Workload, waves: Waves) -> float:
    """Seconds of a program at a size.  lines: by height."""
    large, small = lines[combination.large], lines.get(combination.small)
    both = large if small is None or not combination.few else small
    alpha = max(large.alpha, both.alpha) if combination.many else both.alpha
    tiles = combination.many * large.tau + combination.few * both.tau
    return waves.base + waves.of(workload) * (alpha + tiles)


def matrix(
    lines: Mapping[int, Line],
    combinations: Sequence[Sequence[Combination | None]],
    workloads: Sequence[Workload],
    waves: Waves,
) -> Floats:
    """Predicted seconds, float64[programs, instances]; ∞ where a program does not cover a size.

    combinations: of each program at each size."""
    rows = [
        [np.inf if c is None else predict(lines, c, w, waves) for c, w in zip(row, workloads, strict=True)]
        for row in combinations
    ]
    return np.asarray(rows, dtype=np.float64).reshape(len(combinations), len(workloads))
