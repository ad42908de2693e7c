"""`Trees` in arrays predict the sum of their leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from felixlike.costmodel.boosted_trees import Trees

ROWS = np.array([[0.5, 9.0], [1.0, 2.0], [1.5, 2.0], [1.5, 9.0]], dtype=np.float32)


def two_trees() -> Trees:
    """Return two trees with base 16: x₀ ≤ 1 ? 1 : (x₁ ≤ 3 ? 2 : 4), and 8 for every row."""
    return Trees(
        feature=np.array([0, -1, 1, -1, -1, -1], dtype=np.int16),
        threshold=np.array([1.0, 0.0, 3.0, 0.0, 0.0, 0.0], dtype=np.float32),
        left=np.array([1, 0, 3, 0, 0, 0], dtype=np.int32),
        right=np.array([2, 0, 4, 0, 0, 0], dtype=np.int32),
        value=np.array([0.0, 1.0, 0.0, 2.0, 4.0, 8.0], dtype=np.float32),
        roots=np.array([0, 5], dtype=np.int32),
        base=16.0,
        depth=2,
    )


def test_predictions_add_a_leaf_of_every_tree() -> None:
    assert two_trees().predict(ROWS).tolist() == [25.0, 25.0, 26.0, 28.0]
    assert two_trees().predict(ROWS[:0]).tolist() == []


def test_trees_round_trip_through_a_file(tmp_path: Any) -> None:
    np.savez(tmp_path / "trees.npz", **two_trees().to_arrays("one"), **two_trees().to_arrays("two"))
    with np.load(tmp_path / "trees.npz", allow_pickle=False) as arrays:
        assert Trees.from_arrays(arrays, "two").predict(ROWS).tolist() == two_trees().predict(ROWS).tolist()


def test_predictions_equal_those_of_scikit_learn() -> None:
    from benchmarks.simulated import grown

    rng = np.random.default_rng(0)
    rows = rng.integers(0, 9, (400, 5)).astype(np.float32) + rng.random((400, 5)).astype(np.float32)
    values = rows[:, 0] * rows[:, 1] + rng.random(400)
    trees, model = grown(rows, values, None, {"max_iter": 30, "max_leaf_nodes": 9})
    unseen = rng.random((200, 5)).astype(np.float32) * 10
    for inputs in (rows, unseen):
        np.testing.assert_allclose(trees.predict(inputs), model.predict(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"feature": np.array([2, -1, 1, -1, -1, -1], dtype=np.int16)}, "feature index 2 .*2 features"),
        ({"feature": np.zeros(6)}, "feature .*float64"),
        ({"left": np.array([0, 0, 3, 0, 0, 0], dtype=np.int32)}, "left .*0"),  # a node that is its own child
        ({"right": np.array([2, 0, 6, 0, 0, 0], dtype=np.int32)}, "right .*6"),  # a child that does not exist
        ({"roots": np.array([-1], dtype=np.int32)}, "roots .*-1"),
        ({"value": np.full(6, np.nan, dtype=np.float32)}, "values .*NaN"),
        ({"value": np.zeros(5, dtype=np.float32)}, "value .*5"),
        ({"base": float("inf")}, "base .*infinite"),
        ({"depth": 1000}, "depth .*1000"),
    ],
)
def test_invalid_trees_are_errors(changed: dict[str, Any], words: str) -> None:
    two_trees().check(columns=2)
    with pytest.raises(ValueError, match=words):
        replace(two_trees(), **changed).check(columns=2)
