import math

import pytest

from felixlike.errors import InvalidOption
from felixlike.measure import Limits, Timing


def test_defaults_are_valid() -> None:
    assert 0 < Limits().memory_bytes <= 4 * 2**30
    assert Limits().timing == Timing()


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "10"])
def test_limits_are_positive_numbers(value: float) -> None:
    with pytest.raises(InvalidOption, match=r"Limits: run_seconds is .*greater than zero"):
        Limits(run_seconds=value)
    with pytest.raises(InvalidOption, match=r"Timing: max_seconds is .*greater than zero"):
        Timing(max_seconds=value)
