"""Points: rows of integers, one column a variable; which of them a sketch's variables can have.

In: what callers give for points, and the variables. Out: arrays of the right shape, or an InvalidPoint. What depends on
a program, its gates, is `Sketch.valid`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from felixlike._util.wording import counted, shown
from felixlike.errors import InvalidPoint
from felixlike.symbolic.program.variables import Kind, Variable, groups

Points = npt.NDArray[np.int64]


def rows_of(points: npt.ArrayLike, variables: Sequence[Variable], *, where: str) -> Points:
    """The points as int64[n, variables], valid or not. Raises InvalidPoint for another shape, and for what are no
    whole numbers."""
    rows = _whole_numbers(points)
    if rows is None or rows.ndim != 2 or rows.shape[1] != len(variables):
        what = f"are {shown(points)}" if rows is None else f"have shape {rows.shape}"
        raise InvalidPoint(
            f"points {what}, not whole numbers [count, {len(variables)}]",
            where=where,
            remedy="give one row a point, one column a variable of Sketch.variables",
        )
    return rows


def row_of(point: npt.ArrayLike, variables: Sequence[Variable], *, where: str) -> tuple[int, ...]:
    """One point as a tuple, valid or not. Raises InvalidPoint as `rows_of` does."""
    row = _whole_numbers(point)
    if row is None or row.shape != (len(variables),):
        what = f"it is {shown(point)}" if row is None or row.ndim != 1 else f"it has {counted(len(row), 'number')}"
        raise InvalidPoint(
            f"{what}, not {counted(len(variables), 'whole number')}",
            where=f"point of {where}",
            remedy="give one number a variable of Sketch.variables",
        )
    return tuple(row.tolist())


def in_range(row: Sequence[int], variables: Sequence[Variable]) -> bool:
    """Whether each number is one that its variable can have, and tiles make up their loops; compute locations are left
    to TVM."""
    rest = [(v, x) for v, x in zip(variables, row, strict=True) if v.kind is not Kind.LOCATION]
    if any(x not in v.choices for v, x in rest):
        return False
    return all(
        math.prod(row[c] for c in columns) == first.extent
        for _, columns in groups(variables)
        if (first := variables[columns[0]]).kind is Kind.TILE
    )


def all_in_range(points: Points, variables: Sequence[Variable]) -> npt.NDArray[np.bool_]:
    """bool[n]: `in_range` of each of int64[n, variables]."""
    good = np.ones(len(points), dtype=bool)
    for column, variable in enumerate(variables):
        if variable.kind is not Kind.LOCATION:
            good &= np.isin(points[:, column], variable.choices)
    for _, columns in groups(variables):
        first = variables[columns[0]]
        if first.kind is Kind.TILE:
            good &= points[:, columns].prod(axis=1) == first.extent
    return good


def _whole_numbers(values: npt.ArrayLike) -> Points | None:
    """The values as an array of integers; None where they are something else."""
    try:
        array = np.asarray(values)
    except Exception:  # ragged lists, tensors that NumPy cannot hold
        return None
    if array.dtype.kind == "f" and bool((array == np.floor(array)).all()) and bool((np.abs(array) < 2**53).all()):
        return array.astype(np.int64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and bool((array >= 2**63).any()):
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else None
