"""`reduction_length` is the number of terms of a task's longest sum."""

import pytest
import workloads

from felixlike import _tvm
from felixlike.frontend.constants import TERMS
from felixlike.measure.check.reduction import reduction_length


@pytest.mark.parametrize(
    ("func", "terms"),
    [
        (workloads.matmul(8, 24, 16), 24),
        (workloads.conv2d(channels=16), 16 * 3 * 3),
        (workloads.depthwise(kernel=5), 25),
        (workloads.chain(), 1),
        (workloads.chain().with_attr(TERMS, 64), 64),
    ],
)
def test_reduction_length_is_the_number_of_terms(func: object, terms: int) -> None:
    assert reduction_length(func) == terms


def test_the_largest_window_decides() -> None:
    x = _tvm.te.placeholder((1, 2, 13, 11), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.topi.nn.adaptive_pool(x, (6, 4), "avg")])
    assert reduction_length(func) == 3 * 4  # 13 into 6: 3 each; 11 into 4: 3 or 4
