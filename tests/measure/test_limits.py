import math
from typing import Any

import numpy as np
import pytest

from felixlike.errors import InvalidOption
from felixlike.measure import Limits, Timing


def test_defaults_are_valid() -> None:
    assert 0 < Limits().memory_bytes <= 4 * 2**30
    assert Limits().timing == Timing()


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "10"])
def test_limits_are_positive_numbers(value: float) -> None:
    with pytest.raises(InvalidOption, match=rf"Limits: .*\brun_seconds\b.*greater than 0, got {value!r}\."):
        Limits(run_seconds=value)
    with pytest.raises(InvalidOption, match=rf"Timing: .*\bmax_seconds\b.*greater than 0, got {value!r}\."):
        Timing(max_seconds=value)


@pytest.mark.parametrize("value", [0, 1.5, True, None, "3"])
def test_counts_are_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"Timing: .*\bmin_batches\b.* ≥ 1, got {value!r}\."):
        Timing(min_batches=value)
    with pytest.raises(InvalidOption, match=rf"Limits: .*\bmemory_bytes\b.* ≥ 1, got {value!r}\."):
        Limits(memory_bytes=value)


def test_numpy_numbers_become_python_numbers() -> None:
    limits = Limits(run_seconds=np.float32(2), memory_bytes=np.int64(2**30), timing=Timing(turns=0))  # type: ignore[arg-type]
    assert type(limits.run_seconds) is float
    assert type(limits.memory_bytes) is int
    with pytest.raises(InvalidOption, match=r"Limits: .*\btiming\b.*None\."):
        Limits(timing=None)  # type: ignore[arg-type]


def test_words_are_checked() -> None:
    with pytest.raises(InvalidOption, match=r"variation: 'total' is not a variation.*batches"):
        Timing(variation="total")
    with pytest.raises(InvalidOption, match=r"statistic: 'median' is not a statistic.*mean"):
        Timing(statistic="median")
    with pytest.raises(InvalidOption, match=r"Timing: .*\bbatch_calls\b.* ≥ 1, got 0\."):
        Timing(batch_calls=0)
    assert Timing(batch_calls=50).batch_calls == 50
