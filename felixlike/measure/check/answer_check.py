"""Is an answer right?  Distance from the reference, what is tolerated, and contents that cannot pass for an answer."""

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_UNITS = 16
_UNITS_A_ROOT = 2
_EPSILON = {"bfloat16": 2.0**-7, **{name: float(np.finfo(name).eps) for name in ("float16", "float32", "float64")}}
_FLOOR = {"float32": 1e-5, "float64": 1e-10}
"""Exponentials and the like are approximated, whatever is summed up."""

ROUNDING = {name: epsilon / 2 for name, epsilon in _EPSILON.items() if name != "float64"}
"""By how much of a number rounding may change it, for types that are compared with finer ones."""

_MOST = 1e-2
"""Errors that are let pass at most, whatever rounding errors become."""


def relative_error(got: Array, reference: Array) -> float:
    """max |got − reference| / max |reference| of one output; 0 or inf for integers and booleans.

    got, reference: same shape; the reference float64, or of got's type.  Where the reference is nan anything goes;
    where it is ±inf only the same will do; where it is finite, nan counts as inf.  A reference of zeros is compared
    absolutely."""
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
    """The largest error let pass in an output of this type, relative to its largest value.

        max(ε · (16 + 2 √terms), 1e-5 for float32, 1e-10 for float64)

    terms: of the longest sum behind a value. Rounding errors of a sum in another order are those of a random walk,
    about ε √terms (Higham, Accuracy and Stability of Numerical Algorithms, §4.2), seldom more than twice that.
    given: the user's own for float32, which wins there and is a least value elsewhere.  rounded: the coarsest type that
    values have on the way, whose ε counts where it is larger.  products: what rounding their factors may cost, as
    tensor cores do (`hardware/precision.py`)."""
    if dtype not in _EPSILON:
        return 0.0
    epsilon = max(_EPSILON[dtype], _EPSILON[rounded])
    if given is not None and dtype == "float32" and epsilon == _EPSILON[dtype]:
        return given
    allowed = epsilon * (_UNITS + _UNITS_A_ROOT * math.sqrt(terms))
    return max(allowed, _FLOOR.get(dtype, 0.0), given or 0.0, products)


def magnification(moved: Array, reference: Array) -> float:
    """The largest error let pass where functions magnify rounding errors: 16 times what it changes to round the inputs,
    at most 0.01.  moved: the float64 answer for inputs that are off by a rounding; reference: for the inputs."""
    return min(_UNITS * relative_error(moved, reference), _MOST)


def poison(reference: Array, dtype: str) -> Array:
    """Contents for an output before the checked call that are wrong everywhere: nan, or the complement of each bit."""
    if reference.dtype.kind == "f":
        return np.full(reference.shape, math.nan, dtype)
    return ~np.asarray(reference).astype(dtype)
