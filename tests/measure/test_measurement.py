import math
from typing import Any

import pytest

from felixlike.measure import Measurement, Status
from felixlike.measure.outcome import measurement


def test_a_failure_has_no_time() -> None:
    failure = Measurement(Status.CRASHED, message="its process died of SIGSEGV")
    assert failure.seconds == math.inf
    assert failure.repeats == ()
    assert math.isnan(failure.spread)
    assert failure.error is None


def test_a_status_equals_its_text() -> None:
    assert Status("out of memory") is Status.OUT_OF_MEMORY
    assert f"{Status.BUILD_ERROR}" == "build error"


@pytest.mark.parametrize("repeats", [[-1e-9], [1e-6, 0.0], [math.nan], [math.inf, 1e-6], ["1e-6"], [None]])
def test_times_that_no_clock_measures_are_a_failure(repeats: list[Any]) -> None:
    answer = {"status": Status.OK, "error": 0.0, "repeats": repeats, "device": "far"}
    failure = measurement(answer, build_seconds=1.0, run_seconds=2.0)
    assert failure.status is Status.RUN_ERROR
    assert (failure.seconds, failure.repeats, failure.device) == (math.inf, (), "far")
    assert failure.message.startswith("its times are impossible: [")


def test_a_candidate_that_was_only_checked_has_no_time() -> None:
    checked = measurement({"status": Status.OK, "error": 0.0, "repeats": ()}, build_seconds=1.0, run_seconds=2.0)
    assert checked.status is Status.OK
    assert math.isnan(checked.seconds)
