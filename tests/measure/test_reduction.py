"""The longest sum of a task."""

import pytest
import workloads

from felixlike.measure.reduction import reduction_length


@pytest.mark.parametrize(
    ("func", "terms"),
    [
        (workloads.matmul(8, 24, 16), 24),
        (workloads.conv2d(channels=16), 16 * 3 * 3),
        (workloads.depthwise(kernel=5), 25),
        (workloads.chain(), 1),
    ],
)
def test_terms(func: object, terms: int) -> None:
    assert reduction_length(func) == terms
