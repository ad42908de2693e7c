"""What is kept of a candidate for those with the same code."""

import pytest

from felixlike.measure import Measurement, Status
from felixlike.measure.local.code_cache import CodeCache

KEY = ("task", True, "digest")
TIMED = Measurement(Status.OK, seconds=1.0, repeats=(1.0,), build_seconds=2.0, run_seconds=3.0)


def test_a_time_is_told_again_without_a_run() -> None:
    earlier = CodeCache(reuse=True)
    assert earlier.find(KEY) is None
    earlier.keep(KEY, TIMED)
    found = earlier.find(KEY)
    assert found is not None
    assert found.repeats == (1.0,)
    assert found.run_seconds == 0.0
    assert found.message == "the same code as an earlier candidate"
    assert earlier.find(("task", False, "digest")) is None


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_of_failures_only_a_wrong_answer_is_sure_to_come_again(status: Status) -> None:
    earlier = CodeCache(reuse=True)
    earlier.keep(KEY, Measurement(status, message="why"))
    found = earlier.find(KEY)
    assert (found is not None) == (status is Status.WRONG)
    assert found is None or found.message == "why"


def test_without_reuse_nothing_is_kept() -> None:
    earlier = CodeCache(reuse=False)
    earlier.keep(KEY, TIMED)
    assert earlier.find(KEY) is None
