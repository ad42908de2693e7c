"""DietCode's micro-kernel cost model: predict every program at every size from two timings per uKernel.

Input: seconds of each uKernel at one wave and at N waves. Output: a matrix [programs × instances]. A core processes
shares of the output. Each share costs a start (a panel of weights, a copy) and a time for each tile of its height:

    seconds = base + waves · depth · (α + Num₁ · τ₁ + Num₂ · τ₂),   waves = ⌈shares / cores⌉

α and τ of each height follow from its two timings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from felixlike.dynamic.combine import Combination
from felixlike.dynamic.ukernel import Floats, Workload


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing of a uKernel.

    Attributes:
        seconds: Seconds of a call.
        workload: What the call computed.
        tiles: Number of tiles along its rows.
    """

    seconds: float
    workload: Workload
    tiles: int


@dataclass(frozen=True, slots=True)
class Line:
    """Cost of a uKernel in a share, in seconds per reduction step. alpha: of the share. tau: of each tile."""

    alpha: float
    tau: float


@dataclass(frozen=True, slots=True)
class Waves:
    """How the output is divided.

    Attributes:
        columns: Columns of a share.
        cores: Number of cores.
        base: Seconds of a call that computes nothing.
        narrow: Columns of narrower tiles, ascending, of which the first that suffices computes the last columns.
    """

    columns: int
    cores: int
    base: float = 0.0
    narrow: tuple[int, ...] = ()

    def of(self, workload: Workload) -> float:
        """Return shares per core times reduction steps. A narrow share counts by its columns."""
        full, rest = divmod(workload.j, self.columns)
        last = next((columns for columns in self.narrow if rest <= columns), self.columns) if rest else 0
        shares = workload.batch * (full + last / self.columns)
        return math.ceil(shares / self.cores) * workload.k


def line(one: Timing, many: Timing, waves: Waves) -> Line:
    """Return the cost of a uKernel from two timings: with one tile per share and with many."""
    first = max(one.seconds - waves.base, 1e-9) / waves.of(one.workload)
    second = max(many.seconds - waves.base, 1e-9) / waves.of(many.workload)
    if many.tiles == one.tiles:
        return Line(0.0, second / many.tiles)
    tau = max((second - first) / (many.tiles - one.tiles), second / many.tiles / 4)
    return Line(max(first - one.tiles * tau, 0.0), tau)


def predict(lines: Mapping[int, Line], combination: Combination, workload: Workload, waves: Waves) -> float:
    """Return the predicted seconds of a program at a size. lines: costs by height."""
    large, small = lines[combination.large], lines.get(combination.small)
    second = large if small is None or not combination.few else small
    alpha = max(large.alpha, second.alpha) if combination.many else second.alpha
    tiles = combination.many * large.tau + combination.few * second.tau
    return waves.base + waves.of(workload) * (alpha + tiles)


def matrix(
    lines: Mapping[int, Line],
    combinations: Sequence[Sequence[Combination | None]],
    workloads: Sequence[Workload],
    waves: Waves,
) -> Floats:
    """Return predicted seconds, float64[programs, instances]; ∞ where a program does not cover a size.

    combinations: Cover of each program at each size.
    """
    rows = [
        [np.inf if c is None else predict(lines, c, w, waves) for c, w in zip(row, workloads, strict=True)]
        for row in combinations
    ]
    return np.asarray(rows, dtype=np.float64).reshape(len(combinations), len(workloads))
