import math

from felixlike.measure import Measurement, Status


def test_a_failure_has_no_time() -> None:
    failure = Measurement(Status.CRASHED, message="its process died of SIGSEGV")
    assert failure.seconds == math.inf
    assert failure.repeats == ()
    assert math.isnan(failure.spread)
    assert failure.error is None


def test_a_status_equals_its_text() -> None:
    assert Status("out of memory") is Status.OUT_OF_MEMORY
    assert f"{Status.BUILD_ERROR}" == "build error"
