"""Gradient-boosted regression trees as plain arrays, evaluated by NumPy: only who fits them needs another library.

In: rows of features. Out: a number a row, the sum of one leaf of every tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

_ARRAYS = ("feature", "threshold", "left", "right", "value", "roots")


@dataclass(frozen=True, slots=True)
class Trees:
    """All nodes of all trees, one after the other.

    feature: int16[nodes], the column that a node asks for; −1: a leaf.  threshold: float32[nodes], rows not above it go
    left.  left, right: int32[nodes], where the answers lead.  value: float32[nodes], of leaves.  roots: int32[trees].
    base: what the sum begins with.  depth: of the deepest tree."""

    feature: npt.NDArray[np.int16]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    roots: npt.NDArray[np.int32]
    base: float
    depth: int

    def predict(self, rows: Rows) -> Values:
        """float64[n] for rows float32[n, columns]."""
        places = np.arange(len(rows))[:, None]
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            feature = self.feature[at]
            goes_left = rows[places, np.maximum(feature, 0)] <= self.threshold[at]
            at = np.where(feature < 0, at, np.where(goes_left, self.left[at], self.right[at]))
        found: Values = self.base + self.value[at].sum(axis=1, dtype=np.float64)
        return found

    def to_arrays(self, name: str) -> dict[str, Any]:
        """For np.savez, under a name that other trees in the file do not have."""
        arrays = {f"{name}.{array}": getattr(self, array) for array in _ARRAYS}
        return {**arrays, f"{name}.base": np.float64(self.base), f"{name}.depth": np.int64(self.depth)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], name: str) -> Trees:
        """What `to_arrays` gave."""
        found = {array: arrays[f"{name}.{array}"] for array in _ARRAYS}
        return Trees(**found, base=float(arrays[f"{name}.base"]), depth=int(arrays[f"{name}.depth"]))
