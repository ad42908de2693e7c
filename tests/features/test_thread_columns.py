"""What a GPU's neighbouring threads touch, and what a thread has of its own, for a product with known formulas."""

from __future__ import annotations

import numpy as np
import pytest
from support.operators import OPERATORS

from felixlike.features import NAMES, formulas
from felixlike.symbolic import Sketch, sketches


@pytest.fixture(scope="module")
def product() -> Sketch:
    return sketches(OPERATORS["matmul"](), "sm_90")[0]


def _column(sketch: Sketch, points: np.ndarray, store: str, name: str) -> list[float]:
    made = formulas(sketch)
    found: list[float] = made.evaluate(points)[:, made.stores.index(store), NAMES.index(name)].tolist()
    return found


def test_neighbours_of_a_product(product: Sketch) -> None:
    points = product.sample(64, 0)
    names = [variable.name for variable in product.variables]
    values = [dict(zip(names, point, strict=True)) for point in points.tolist()]
    # C is [i, j], 512 wide: threads go along j first, each with its own j.3·j.4 columns and i.3·i.4 rows.
    apart = [v["j.3"] * v["j.4"] if v["j.2"] > 1 else v["i.3"] * v["i.4"] * 512 if v["i.2"] > 1 else 0 for v in values]
    # (The block C writes the accumulators, and C_local copies these to C.)
    assert _column(product, points, "C_local", "buffer0_thread_stride") == apart
    assert len(set(apart)) > 4
    # All threads along j read one element of A, and those along i one of B.
    rows = [v["k.1"] * v["k.2"] * v["i.3"] * v["i.4"] if v["i.2"] > 1 else 0 for v in values]
    assert _column(product, points, "C", "buffer1_thread_stride") == [
        0 if v["j.2"] > 1 else row for v, row in zip(values, rows, strict=True)
    ]


def test_what_a_thread_has_of_its_own(product: Sketch) -> None:
    points = product.sample(16, 1)
    names = [variable.name for variable in product.variables]
    tiles = [[point[names.index(n)] for n in ("i.3", "i.4", "j.3", "j.4")] for point in points.tolist()]
    own = [4.0 * np.prod(tile) for tile in tiles]
    for store in ("C", "C_local", "A_shared"):
        assert _column(product, points, store, "local_bytes") == own


def test_copies_that_threads_share_are_vectors_apart(product: Sketch) -> None:
    points = product.sample(64, 2)
    names = [variable.name for variable in product.variables]
    chosen = [point[names.index("fetch.1")] for point in points.tolist()]
    found = _column(product, points, "B_shared", "buffer0_thread_stride")
    assert all(stride in (1.0, float(vector)) for stride, vector in zip(found, chosen, strict=True))
    assert {1.0, 2.0, 4.0} <= set(found)


def test_cpus_have_neither() -> None:
    sketch = sketches(OPERATORS["matmul"](), "cpu")[0]
    features = formulas(sketch).evaluate(sketch.sample(8, 0))
    columns = [i for i, name in enumerate(NAMES) if name.endswith("thread_stride") or name == "local_bytes"]
    assert len(columns) == 6
    assert not features[:, :, columns].any()
