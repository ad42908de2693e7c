"""Check outputs: the error relative to the reference, the tolerance, and contents that no correct output has."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_EPSILON = {"bfloat16": 2.0**-7, **{name: float(np.finfo(name).eps) for name in ("float16", "float32", "float64")}}
"""Distance from 1 to the next number, by type."""

ROUNDING = {name: epsilon / 2 for name, epsilon in _EPSILON.items() if name != "float64"}
"""Largest relative change of a number by rounding, for types that are compared with finer ones."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How large the error of an output may be, relative to its largest value. All values are chosen by hand.

    Attributes:
        units: Constant part of the tolerance, in multiples of ε, and of the effect of rounding the inputs.
        units_a_root: Part of the tolerance that grows with the root of the terms, in multiples of ε.
        floor: Smallest tolerance by dtype, since exponentials and the like are approximations.
        magnified: Upper limit on the tolerance for magnified rounding errors.
    """

    units: int = 16
    units_a_root: int = 2
    floor: dict[str, float] = field(default_factory=lambda: {"float32": 1e-5, "float64": 1e-10})
    magnified: float = 1e-2


_TOLERANCES = Tolerances()


def relative_error(got: Array, reference: Array) -> float:
    """Return max |got − reference| / max |reference| of one output; 0 or inf for integers and booleans.

    Where the reference is nan, any value is correct; where it is ±inf, only the same value is; where it is finite, nan
    counts as inf. A reference of zeros is compared absolutely.

    Args:
        got: The output.
        reference: The reference, of the same shape; float64 or of got's dtype.
    """
    if reference.dtype.kind != "f":
        return 0.0 if np.array_equal(got, reference) else math.inf
    finite = np.isfinite(reference)
    if not finite.all():
        infinite = np.isinf(reference)
        if not np.array_equal(got[infinite], reference[infinite]):
            return math.inf
        got, reference = got[finite], reference[finite]
    if not reference.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        worst = float(np.max(np.abs(got - reference)))
    if math.isnan(worst):
        return math.inf
    return worst / (float(np.max(np.abs(reference))) or 1.0)


def tolerance(
    dtype: str, terms: int, given: float | None = None, *, rounded: str = "float64", products: float = 0.0
) -> float:
    """Return the largest correct error of an output of this dtype, relative to its largest value.

        max(ε · (16 + 2 √terms), 1e-5 for float32, 1e-10 for float64)

    Rounding errors of a sum in another order are those of a random walk, about ε √terms (Higham, Accuracy and Stability
    of Numerical Algorithms, §4.2), rarely more than twice that.

    Args:
        dtype: The output's dtype.
        terms: Number of terms of the longest sum in the function.
        given: The user's tolerance. It replaces that of float32 and is a lower limit for other dtypes.
        rounded: Coarsest dtype of an intermediate value; its ε is used if it is larger.
        products: Largest error due to factors that are rounded first (`hardware/precision.py`).

    Returns:
        The tolerance; 0 for integers and booleans.
    """
    if dtype not in _EPSILON:
        return 0.0
    epsilon = max(_EPSILON[dtype], _EPSILON[rounded])
    if given is not None and dtype == "float32" and epsilon == _EPSILON[dtype]:
        return given
    allowed = epsilon * (_TOLERANCES.units + _TOLERANCES.units_a_root * math.sqrt(terms))
    return max(allowed, _TOLERANCES.floor.get(dtype, 0.0), given or 0.0, products)


def magnification(moved: Array, reference: Array) -> float:
    """Return the tolerance of functions that magnify rounding errors: 16 × the effect of rounding the inputs, ≤ 0.01.

    Args:
        moved: float64 output for inputs that are off by a rounding error.
        reference: float64 output for the inputs.
    """
    return min(_TOLERANCES.units * relative_error(moved, reference), _TOLERANCES.magnified)


def poison(reference: Array, dtype: str) -> Array:
    """Return initial contents of an output that are wrong everywhere: nan, or the reference's bits inverted."""
    if reference.dtype.kind == "f":
        return np.full(reference.shape, math.nan, dtype)
    return ~np.asarray(reference).astype(dtype)
