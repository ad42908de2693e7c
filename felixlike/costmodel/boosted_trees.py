"""Evaluate gradient-boosted regression trees with NumPy. Only fitting them needs another library.

Input: rows of features. Output: one number per row, the sum of one leaf of every tree.
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
"""Arrays of floats; the others hold indices of nodes and columns."""

_DEEPEST = 64
"""Upper limit of the depth of a tree read from a file; chosen by hand."""


@dataclass(frozen=True, slots=True)
class Trees:
    """All nodes of all trees in concatenated arrays.

    Attributes:
        feature: int16[nodes], the column that a node tests; −1 for a leaf.
        threshold: float32[nodes]. Rows with a value of at most the threshold go left.
        left: int32[nodes], index of the left child.
        right: int32[nodes], index of the right child.
        value: float32[nodes], values of leaves.
        roots: int32[trees], index of each tree's root.
        base: Initial value of the sum.
        depth: Depth of the deepest tree.
    """

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
        """Convert a fitted HistGradientBoostingRegressor of scikit-learn (LightGBM's algorithm)."""
        nodes = [tree.nodes for (tree,) in model._predictors]
        roots = np.cumsum([0, *(len(tree) for tree in nodes[:-1])])
        every, start = np.concatenate(nodes), np.repeat(roots, [len(tree) for tree in nodes])
        leaf = every["is_leaf"].astype(bool)
        # Rows are float32. A threshold between two of their values remains between them when rounded down.
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
        """Return float64[n] for rows float32[n, columns]."""
        at = np.tile(self.roots, (len(rows), 1)).reshape(-1)
        row = np.repeat(np.arange(len(rows)), len(self.roots))
        going = np.flatnonzero(self.feature[at] >= 0)
        while len(going):
            here = at[going]
            left = rows[row[going], self.feature[here]] <= self.threshold[here]
            here = np.where(left, self.left[here], self.right[here])
            at[going] = here
            going = going[self.feature[here] >= 0]
        result: Values = self.base + self.value[at].reshape(len(rows), len(self.roots)).sum(axis=1, dtype=np.float64)
        return result

    def check(self, *, columns: int) -> None:
        """Validate trees read from a file.

        Raises:
            ValueError: An array is malformed, a node's child precedes it, or an index is out of range.
        """
        arrays = {array: np.asarray(getattr(self, array)) for array in _ARRAYS}
        count = arrays["feature"].size
        for name, array in arrays.items():
            if array.ndim != 1 or array.dtype.kind != ("f" if name in _NUMBERS else "i"):
                raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
            if name != "roots" and len(array) != count:
                raise ValueError(f"{name} has {len(array)} nodes, expected {count}")
        (inner,) = np.nonzero(self.feature >= 0)
        for name, nodes, least in (
            ("left", self.left[inner], inner + 1),
            ("right", self.right[inner], inner + 1),
            ("roots", self.roots, 0),
        ):
            outside = nodes[(nodes < least) | (nodes >= count)]
            if len(outside):
                raise ValueError(f"{name} has the invalid node index {outside[0]} ({count} nodes)")
        largest = int(self.feature.max(initial=-1))
        if largest >= columns:
            raise ValueError(f"feature index {largest} is out of range ({columns} features)")
        if not 0 <= self.depth <= _DEEPEST:
            raise ValueError(f"depth is {self.depth}, expected 0 to {_DEEPEST}")
        if not np.isfinite([*self.value, self.base]).all():
            raise ValueError("some leaf values or the base are NaN or infinite")

    def to_arrays(self, name: str) -> dict[str, Any]:
        """Return arrays for np.savez, with keys that start with `name`."""
        arrays = {f"{name}.{array}": getattr(self, array) for array in _ARRAYS}
        return {**arrays, f"{name}.base": np.float64(self.base), f"{name}.depth": np.int64(self.depth)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], name: str) -> Trees:
        """Restore trees from the arrays of `to_arrays`."""
        fields = {array: arrays[f"{name}.{array}"] for array in _ARRAYS}
        return Trees(**fields, base=float(arrays[f"{name}.base"]), depth=int(arrays[f"{name}.depth"]))
