"""A workshop on its own, and a pool of it with another place than this machine or servers."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from felixlike.errors import InvalidSchedule, WorkerFailed
from felixlike.frontend import Task
from felixlike.measure import Measurement, Schedulable, Status
from felixlike.measure.interface import Results
from felixlike.measure.pool import WorkshopPool
from felixlike.measure.trial import Trial
from felixlike.measure.workshop import Workshop
from felixlike.testing.faulty import matmul, task_of, tiled

TASK = task_of(matmul(), "matmul")


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    opened = Workshop(TASK.target, workers=1)
    with closing(opened.processes):
        yield opened


class Refused:
    def module(self) -> Any:
        raise InvalidSchedule("no such loop", where="here", remedy="another point")


class Elsewhere:
    """A place that says of every candidate what it was asked."""

    devices = frozenset(["a device of its own"])

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        for index, _ in enumerate(candidates):
            yield index, Measurement(Status.CRASHED, message=f"{task.name}, {verify}, {best}")


def test_a_claim_ends_what_it_began(workshop: Workshop) -> None:
    with workshop.claimed():
        trial = workshop.begin(7, tiled(), 0)
        assert isinstance(trial, Trial)
        assert trial.index == 7
        assert workshop.processes.under_way == {trial}
        with pytest.raises(WorkerFailed, match="another stream of this pool is still open"):
            workshop.claimed().__enter__()
        during = trial.closed
    assert (during, trial.closed) == (False, True)
    with workshop.claimed():
        assert not workshop.processes.under_way


def test_a_candidate_without_a_module_needs_no_process(workshop: Workshop) -> None:
    found = workshop.begin(0, Refused(), 0)
    assert isinstance(found, Measurement)
    assert found.status is Status.INVALID
    assert "no such loop" in found.message
    assert not workshop.processes.under_way


def test_any_place_makes_a_pool_with_a_workshop() -> None:
    with WorkshopPool(Workshop(TASK.target, workers=1), Elsewhere()) as pool:
        assert pool.devices == {"a device of its own"}
        found = pool.measure(TASK, [tiled(), Refused()], verify=False, best=2)
        assert [measurement.message for measurement in found] == ["matmul, False, 2.0"] * 2
        assert pool.check(TASK, tiled()).status is Status.OK  # here, whatever the place
        directory = pool._workshop.processes.directory
        assert directory.exists()
    assert not directory.exists()
