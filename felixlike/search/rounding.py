"""Round relaxed points to the nearest exact factorizations in log space.

Input: float64[n, variables] in the coordinates of `smooth.relax`. Output: int64[n, variables] whose tile factors
multiply to their extents. Compute locations are unchanged. The caller checks validity (`Sketch.valid`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from felixlike.symbolic import Kind, Points, Sketch, Variable
from felixlike.symbolic.expr.factors import divisors, factorisations
from felixlike.symbolic.program.variables import groups

LogPoints = npt.NDArray[np.float64]

_TABLE_LIMIT = 5_000
"""Maximum number of factorizations to compare one by one. With more, factors are rounded from the innermost outwards.
Chosen by hand."""


def round_points(sketch: Sketch, log_x: LogPoints) -> Points:
    """Return the nearest point of each row, rounding each group of variables separately."""
    points = np.empty(log_x.shape, dtype=np.int64)
    for _, columns in groups(sketch.variables):
        members = [sketch.variables[c] for c in columns]
        match members[0].kind:
            case Kind.TILE:
                points[:, columns] = _round_tile(members, log_x[:, columns])
            case Kind.UNROLL | Kind.FETCH | Kind.THREADS:
                choices = np.array(members[0].choices)
                distance = np.abs(log_x[:, columns] - members[0].log(choices)[None, :])
                points[:, columns[0]] = choices[distance.argmin(axis=1)]
            case Kind.LOCATION:
                points[:, columns[0]] = np.rint(log_x[:, columns[0]])
    return points


def _round_tile(members: list[Variable], log_x: LogPoints) -> Points:
    """Round the factors of one loop."""
    extent, largest = members[0].extent, members[-1].choices[-1]
    table = factorisations(extent, len(members), largest)
    if table is not None and len(table) <= _TABLE_LIMIT:
        logs = np.log(table)
        # |x − t|² up to the term that is the same for every t
        distance = (logs * logs).sum(axis=1)[None, :] - 2 * log_x @ logs.T
        nearest: Points = table[distance.argmin(axis=1)]
        return nearest
    return np.array([_round_inwards(extent, largest, row) for row in log_x], dtype=np.int64).reshape(log_x.shape)


def _round_inwards(extent: int, largest: int, row: LogPoints) -> list[int]:
    """Round from the innermost factor outwards to the nearest divisor of the rest; the outermost is the rest."""
    factors: list[int] = []
    rest = extent
    for position in range(len(row) - 1, 0, -1):
        limit = largest if position == len(row) - 1 else rest
        choices = np.array([d for d in divisors(rest) if d <= limit])
        factor = int(choices[np.abs(np.log(choices) - row[position]).argmin()])
        factors.append(factor)
        rest //= factor
    return [rest, *reversed(factors)]
