"""Features of neighbouring threads and of thread-local buffers, for a matmul with known formulas."""

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
    features_of_sketch = formulas(sketch)
    column: list[float] = features_of_sketch.evaluate(points)[
        :, features_of_sketch.stores.index(store), NAMES.index(name)
    ].tolist()
    return column


def test_strides_between_threads_of_a_product(product: Sketch) -> None:
    points = product.sample(64, 0)
    names = [variable.name for variable in product.variables]
    values = [dict(zip(names, point, strict=True)) for point in points.tolist()]
    # C is [i, j] with 512 columns: neighbouring threads differ in j first, each with j.3·j.4 columns and i.3·i.4 rows.
    strides = [
        v["j.3"] * v["j.4"] if v["j.2"] > 1 else v["i.3"] * v["i.4"] * 512 if v["i.2"] > 1 else 0 for v in values
    ]
    # The block C writes the accumulators, and C_local copies them to C.
    assert _column(product, points, "C_local", "buffer0_thread_stride") == strides
    assert len(set(strides)) > 4
    # All threads along j read the same element of A, and all threads along i the same element of B.
    rows = [v["k.1"] * v["k.2"] * v["i.3"] * v["i.4"] if v["i.2"] > 1 else 0 for v in values]
    assert _column(product, points, "C", "buffer1_thread_stride") == [
        0 if v["j.2"] > 1 else row for v, row in zip(values, rows, strict=True)
    ]


def test_local_bytes_are_the_accumulators(product: Sketch) -> None:
    points = product.sample(16, 1)
    names = [variable.name for variable in product.variables]
    tiles = [[point[names.index(n)] for n in ("i.3", "i.4", "j.3", "j.4")] for point in points.tolist()]
    accumulator_bytes = [4.0 * np.prod(tile) for tile in tiles]
    for store in ("C", "C_local", "A_shared"):
        assert _column(product, points, store, "local_bytes") == accumulator_bytes


def test_shared_copies_have_strides_of_one_vector(product: Sketch) -> None:
    points = product.sample(64, 2)
    names = [variable.name for variable in product.variables]
    vector_lengths = [point[names.index("fetch.1")] for point in points.tolist()]
    strides = _column(product, points, "B_shared", "buffer0_thread_stride")
    assert all(stride in (1.0, float(vector)) for stride, vector in zip(strides, vector_lengths, strict=True))
    assert {1.0, 2.0, 4.0} <= set(strides)


def test_cpu_features_have_no_thread_columns() -> None:
    sketch = sketches(OPERATORS["matmul"](), "cpu")[0]
    features = formulas(sketch).evaluate(sketch.sample(8, 0))
    columns = [i for i, name in enumerate(NAMES) if name.endswith("thread_stride") or name == "local_bytes"]
    assert len(columns) == 6
    assert not features[:, :, columns].any()
