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
_NUMBERS = ("threshold", "value")
"""Those of floats; the others are places and columns."""


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

    @staticmethod
    def of(model: Any) -> Trees:
        """What scikit-learn's HistGradientBoostingRegressor (LightGBM's algorithm) has learned."""
        nodes = [tree.nodes for (tree,) in model._predictors]
        roots = np.cumsum([0, *(len(tree) for tree in nodes[:-1])])
        every, start = np.concatenate(nodes), np.repeat(roots, [len(tree) for tree in nodes])
        leaf = every["is_leaf"].astype(bool)
        # Rows are float32: a threshold that lies between two of them stays between them when it is rounded down.
        threshold = every["num_threshold"]
        rounded = threshold.astype(np.float32)
        rounded = np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return Trees(
            feature=np.where(leaf, -1, every["feature_idx"]).astype(np.int16),
            threshold=rounded,
            left=np.where(leaf, 0, every["left"] + start).astype(np.int32),
            right=np.where(leaf, 0, every["right"] + start).astype(np.int32),
            value=np.where(leaf, every["value"], 0.0).astype(np.float32),
            roots=roots.astype(np.int32),
            base=float(np.ravel(model._baseline_prediction)[0]),
            depth=int(every["depth"].max()),
        )

    def predict(self, rows: Rows) -> Values:
        """float64[n] for rows float32[n, columns]."""
        at = np.tile(self.roots, (len(rows), 1)).reshape(-1)
        row = np.repeat(np.arange(len(rows)), len(self.roots))
        going = np.flatnonzero(self.feature[at] >= 0)
        while len(going):
            here = at[going]
            left = rows[row[going], self.feature[here]] <= self.threshold[here]
            here = np.where(left, self.left[here], self.right[here])
            at[going] = here
            going = going[self.feature[here] >= 0]
        found: Values = self.base + self.value[at].reshape(len(rows), len(self.roots)).sum(axis=1, dtype=np.float64)
        return found

    def check(self, *, columns: int) -> None:
        """Raise ValueError for what would not end, or ask for what no row has: a file may hold anything."""
        arrays = {array: np.asarray(getattr(self, array)) for array in _ARRAYS}
        if any(a.ndim != 1 or a.dtype.kind != ("f" if n in _NUMBERS else "i") for n, a in arrays.items()):
            raise ValueError("these are no arrays of trees")
        count = len(self.feature)
        inner = self.feature >= 0
        same = all(len(array) == count for array in (self.threshold, self.left, self.right, self.value))
        forward = same and bool((self.left[inner] > np.flatnonzero(inner)).all())
        forward = forward and bool((self.right[inner] > np.flatnonzero(inner)).all())
        places = [self.left[inner], self.right[inner], self.roots]
        inside = (
            all(bool(((p >= 0) & (p < count)).all()) for p in places) and int(self.feature.max(initial=-1)) < columns
        )
        if not (forward and inside and 0 <= self.depth <= 64 and np.isfinite([*self.value, self.base]).all()):
            raise ValueError("these are no trees of such rows")

    def to_arrays(self, name: str) -> dict[str, Any]:
        """For np.savez, under a name that other trees in the file do not have."""
        arrays = {f"{name}.{array}": getattr(self, array) for array in _ARRAYS}
        return {**arrays, f"{name}.base": np.float64(self.base), f"{name}.depth": np.int64(self.depth)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], name: str) -> Trees:
        """What `to_arrays` gave."""
        found = {array: arrays[f"{name}.{array}"] for array in _ARRAYS}
        return Trees(**found, base=float(arrays[f"{name}.base"]), depth=int(arrays[f"{name}.depth"]))
