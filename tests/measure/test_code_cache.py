"""Measurements that `CodeCache` returns for candidates with the same code."""

import pytest

from felixlike.measure import Measurement, Status
from felixlike.measure.local.code_cache import CodeCache

KEY = ("task", True, "digest")
TIMED = Measurement(Status.OK, seconds=1.0, repeats=(1.0,), build_seconds=2.0, run_seconds=3.0)


def test_a_time_is_reused_without_a_run() -> None:
    code_cache = CodeCache(reuse=True)
    assert code_cache.find(KEY) is None
    code_cache.keep(KEY, TIMED)
    measurement = code_cache.find(KEY)
    assert measurement is not None
    assert measurement.repeats == (1.0,)
    assert measurement.run_seconds == 0.0
    assert measurement.message == "the same code as an earlier candidate"
    assert code_cache.find(("task", False, "digest")) is None


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_wrong_is_the_only_failure_that_is_cached(status: Status) -> None:
    code_cache = CodeCache(reuse=True)
    code_cache.keep(KEY, Measurement(status, message="why"))
    measurement = code_cache.find(KEY)
    assert (measurement is not None) == (status is Status.WRONG)
    assert measurement is None or measurement.message == "why"


def test_nothing_is_cached_without_reuse() -> None:
    code_cache = CodeCache(reuse=False)
    code_cache.keep(KEY, TIMED)
    assert code_cache.find(KEY) is None
