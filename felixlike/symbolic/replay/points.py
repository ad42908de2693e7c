"""Check points: rows of integers, one column per variable.

Input: points from callers, and the variables. Output: arrays of the right shape, or an InvalidPoint. `Sketch.valid`
checks what depends on a program: its gates.
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
"""Points as int64[n, variables]."""


def rows_of(points: npt.ArrayLike, variables: Sequence[Variable], *, where: str) -> Points:
    """Return the points as int64[n, variables], valid or not.

    Raises:
        InvalidPoint: If `points` has another shape or holds values that are not whole numbers.
    """
    rows = _whole_numbers(points)
    if rows is None or rows.ndim != 2 or rows.shape[1] != len(variables):
        received = shown(points) if rows is None else f"shape {rows.shape}"
        raise InvalidPoint(
            f"expected points as whole numbers of shape [count, {len(variables)}], got {received}",
            where=where,
            remedy="pass one row per point and one column per variable of Sketch.variables",
        )
    return rows


def row_of(point: npt.ArrayLike, variables: Sequence[Variable], *, where: str) -> tuple[int, ...]:
    """Return one point as a tuple, valid or not.

    Raises:
        InvalidPoint: If `point` has another shape or holds values that are not whole numbers.
    """
    row = _whole_numbers(point)
    if row is None or row.shape != (len(variables),):
        received = shown(point) if row is None or row.ndim != 1 else counted(len(row), "number")
        raise InvalidPoint(
            f"expected {counted(len(variables), 'whole number')}, got {received}",
            where=f"point of {where}",
            remedy="pass one number per variable of Sketch.variables",
        )
    return tuple(row.tolist())


def in_range(row: Sequence[int], variables: Sequence[Variable]) -> bool:
    """Return whether each number is among its variable's choices and tile factors multiply to their loops' extents.

    Compute locations are not checked; TVM checks them.
    """
    rest = [(v, x) for v, x in zip(variables, row, strict=True) if v.kind is not Kind.LOCATION]
    if any(x not in v.choices for v, x in rest):
        return False
    return all(
        math.prod(row[c] for c in columns) == first.extent
        for _, columns in groups(variables)
        if (first := variables[columns[0]]).kind is Kind.TILE
    )


def all_in_range(points: Points, variables: Sequence[Variable]) -> npt.NDArray[np.bool_]:
    """Return `in_range` of each point: bool[n] for int64[n, variables]."""
    good = np.ones(len(points), dtype=bool)
    for column, variable in enumerate(variables):
        if variable.kind is not Kind.LOCATION:
            good &= np.isin(points[:, column], variable.choices)
    for _, columns in groups(variables):
        first = variables[columns[0]]
        if first.kind is Kind.TILE:
            good &= points[:, columns].prod(axis=1) == first.extent
    return good


def by_columns(points: Points, columns: Sequence[int]) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]:
    """Return (values in these columns, rows with these values), in the order of first appearance."""
    rows_by_values: dict[tuple[int, ...], list[int]] = {}
    for row, values in enumerate(points[:, columns].tolist()):
        rows_by_values.setdefault(tuple(values), []).append(row)
    return [(values, np.array(rows)) for values, rows in rows_by_values.items()]


def values_of(points: Points, variables: Sequence[Variable]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the columns by variable name as float64[n], for the evaluation of formulas."""
    return {v.name: points[:, i].astype(np.float64) for i, v in enumerate(variables)}


def _whole_numbers(values: npt.ArrayLike) -> Points | None:
    """Return the values as an array of integers; None if they are not integers."""
    try:
        array = np.asarray(values)
    except Exception:  # ragged lists, tensors that NumPy cannot hold
        return None
    if array.dtype.kind == "f" and bool((array == np.floor(array)).all()) and bool((np.abs(array) < 2**53).all()):
        return array.astype(np.int64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and bool((array >= 2**63).any()):
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else None
