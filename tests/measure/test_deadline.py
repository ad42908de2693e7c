"""A pool raises `OutOfTime` at the deadline of the run and counts no candidate as failed."""

import collections
from collections.abc import Iterator

import pytest
from support.faulty import calling, matmul, task_of, tiled

from felixlike._util.deadline import Deadline, OutOfTime
from felixlike.measure import Limits, Measurement, MeasurePool, Status

TASK = task_of(matmul(), "matmul")
HANGING = calling(matmul(), "pause")


@pytest.fixture(scope="module")
def deadline() -> Deadline:
    return Deadline()


@pytest.fixture(scope="module")
def pool(deadline: Deadline) -> Iterator[MeasurePool]:
    limits = Limits(build_seconds=300.0, run_seconds=300.0)
    with MeasurePool(TASK.target, limits=limits, workers=1, deadline=deadline) as opened:
        yield opened


def test_a_deadline_shortens_the_time_limit_of_a_step() -> None:
    deadline = Deadline()
    deadline.check()
    assert deadline.limit(float("inf")) == float("inf")
    deadline.move(100.0)
    assert 99.0 < deadline.limit(1000.0) <= 100.0
    assert deadline.limit(10.0) == 10.0
    deadline.move(-10.0)
    assert deadline.limit(10.0) == 0.0
    with pytest.raises(OutOfTime):
        deadline.check()
    deadline.move(-10.0, least=60.0)
    assert deadline.limit(1000.0) == 60.0
    assert deadline.limit(10.0) == 10.0


def test_nothing_is_built_after_the_deadline(pool: MeasurePool, deadline: Deadline) -> None:
    deadline.move(0.0)
    with pytest.raises(OutOfTime):
        pool.measure(TASK, [tiled()])
    with pytest.raises(OutOfTime):
        pool.check(TASK, tiled())
    deadline.move(0.0, least=300.0)
    assert pool.check(TASK, tiled()).status is Status.OK
    deadline.move(300.0)
    assert pool.measure(TASK, [tiled()])[0].status is Status.OK


def test_the_deadline_ends_a_stream_after_the_finished_measurements(pool: MeasurePool, deadline: Deadline) -> None:
    """The limits of the pool are five minutes, so the deadline ends the stream."""
    deadline.move(5.0)
    streamed: list[tuple[int, Measurement]] = []
    results = pool.stream(TASK, [tiled(tile=8), HANGING])
    with pytest.raises(OutOfTime):
        collections.deque(map(streamed.append, results))
    assert [(index, measurement.status) for index, measurement in streamed] == [(0, Status.OK)]
    assert not pool._builder.processes.under_way


def test_candidates_that_are_built_but_not_run_at_the_deadline_are_left_out(
    pool: MeasurePool, deadline: Deadline
) -> None:
    deadline.move(5.0)
    with pytest.raises(OutOfTime):
        pool.measure(TASK, [HANGING, tiled(tile=8)])
    assert not pool._builder.processes.under_way
    deadline.move(300.0)
    assert pool.measure(TASK, [tiled(tile=8)])[0].status is Status.OK


def test_each_of_several_checks_has_its_own_result(pool: MeasurePool, deadline: Deadline) -> None:
    deadline.move(0.0, least=4.0)
    answers = dict(pool.checks([(TASK, HANGING), (TASK, tiled())]))
    assert isinstance(answers[0], OutOfTime)
    assert isinstance(answers[1], Measurement)
    assert answers[1].status is Status.OK
