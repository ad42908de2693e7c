"""Recognize constant masks of attention that depend on the distance of a key from its query alone.

    mask[i, j] = 0 if j − i ≤ 0 else −∞                (causal)
    mask[i, j] = −w < j − i ≤ 0                        (sliding window)

Input: the expression of a mask in a Relax function. Output: the range of distances with one value, and both values.
Kernels then compare positions instead of reading the mask. Masks are recognized by their values, so it does not matter
how a model computes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike.frontend.rewrites.constants_aside import evaluated
from felixlike.frontend.rewrites.rewriting import Bindings, is_constant, shape


@dataclass(frozen=True, slots=True)
class Band:
    """Describe a mask with one value at distances of a key from its query in a range, and another one elsewhere.

    Attributes:
        first: The least distance j − i in the range, None if there is no limit.
        last: The largest distance, None if there is no limit.
        inside: Value at these distances.
        outside: Value at others.
    """

    first: int | None
    last: int | None
    inside: float | bool
    outside: float | bool

    def element(self, i: Any, j: Any, dtype: str) -> Any:
        """Return the mask's element for a query and a key."""
        tests = [] if self.first is None else [i + self.first <= j]
        tests += [] if self.last is None else [j <= i + self.last]
        inside, outside = (_tvm.tirx.const(value, dtype) for value in (self.inside, self.outside))
        if not tests:
            return inside
        if dtype == "bool":
            return _tvm.tirx.all(*tests) if self.inside else _tvm.tirx.Not(_tvm.tirx.all(*tests))
        return _tvm.tirx.Select(_tvm.tirx.all(*tests), inside, outside)


def band_of(mask: npt.NDArray[Any]) -> Band | None:
    """Return the band that equals a mask of the shape (…, queries, keys) everywhere, or None.

    Example:
        >>> band_of(np.tril(np.ones((4, 4), bool)))
        Band(first=None, last=0, inside=True, outside=False)
    """
    if mask.ndim < 2 or mask.dtype.kind not in "bf" or min(mask.shape[-2:]) < 2 or not mask.size:
        return None
    plane = mask.reshape(-1, *mask.shape[-2:])
    value = plane[0, 0, 0]
    same = plane[0] == value
    others = plane[0][~same]
    other = others[0] if others.size else value
    if not np.array_equal(plane, np.broadcast_to(np.where(same, value, other), plane.shape)):
        return None
    rows, columns = same.shape
    distances = np.arange(columns, dtype=np.int32) - np.arange(rows, dtype=np.int32)[:, None]
    bands = []
    for holds, inside, outside in ((same, value, other), (~same, other, value)):
        if holds.any():
            first, last = int(distances[holds].min()), int(distances[holds].max())
            if np.array_equal(holds, (first <= distances) & (distances <= last)):
                limits = (None if first == 1 - rows else first, None if last == columns - 1 else last)
                bands.append(Band(*limits, inside.item(), outside.item()))
    return min(bands, key=lambda band: (band.outside != -math.inf, band.last is None), default=None)


class ConstantMasks:
    """Find the bands of a module's masks.

    Args:
        module: Relax IRModule with operators.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._bands: dict[int | None, tuple[Any, Band | None]] = {}

    def band(self, mask: Any, known: Bindings) -> Band | None:
        """Return the band of a mask, or None for others and for those that the function's inputs change."""
        key = _tvm.identity(mask)
        if key not in self._bands:
            value = self._value(mask, known) if len(shape(mask)) > 1 else None
            self._bands[key] = (mask, None if value is None else band_of(value))
        return self._bands[key][1]

    def _value(self, expression: Any, known: Bindings) -> npt.NDArray[Any] | None:
        """Compute a mask that depends on constants alone, with TVM's own kernels. Return None for others."""
        if is_constant(expression):
            return np.asarray(expression.value.numpy())
        bindings = _origins(expression, known)
        if bindings is None:
            return None
        # Legalised lookups read elements of tuples, which only the canonical form replaces by the elements.
        passes = "LegalizeOps", "CanonicalizeBindings", "FoldConstant", "CanonicalizeBindings"
        result = evaluated(self._module, bindings, expression, passes)
        return np.asarray(result.value.numpy()) if is_constant(result) else None


def _origins(variable: Any, known: Bindings) -> list[Any] | None:
    """Return the bindings that a variable is computed with, in order, or None if it depends on the inputs."""
    found: dict[int | None, Any] = {}

    def visit(variable: Any) -> bool:
        value = known.value(variable)
        if value.same_as(variable):
            return False
        if _tvm.identity(variable) in found:
            return True
        complete = all(visit(other) for other in _tvm.relax.analysis.free_vars(value))
        found[_tvm.identity(variable)] = _tvm.relax.VarBinding(variable, value)
        return complete

    return list(found.values()) if visit(variable) else None
