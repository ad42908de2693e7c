"""`MeasurePool` measures correct and failing candidates in real processes."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from support.faulty import (
    Given,
    Refused,
    answering,
    calling,
    candidates,
    elementwise,
    kill_a_worker,
    matmul,
    task_of,
    tiled,
    tirx,
    topi,
    unbuildable,
)

from felixlike import _tvm
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidModel, InvalidOption, UnknownTarget, WorkerFailed
from felixlike.measure import Limits, Measurement, MeasurePool, Schedulable, Status, Untuned, measure
from felixlike.measure.local.fork_client import ForkServer

FUNC = matmul()
TASK = task_of(FUNC, "matmul")


@pytest.fixture(scope="module")
def pool() -> Iterator[MeasurePool]:
    limits = Limits(run_seconds=3.0, memory_bytes=2**29)
    with MeasurePool(TASK.target, limits=limits, workers=2, reuse=False) as opened:
        yield opened


def server_of(pool: MeasurePool) -> int:
    """Return the process id of the fork server."""
    server: ForkServer = pool._builder.processes.server
    server.fork()[1].close()  # waits until it is ready; the forked process ends when its channel closes
    assert server._process is not None
    return server._process.pid


def kill_server(pool: MeasurePool) -> None:
    """Kill the server and all its processes, and wait until it has ended."""
    os.killpg(server_of(pool), signal.SIGKILL)
    assert pool._builder.processes.server._process is not None
    pool._builder.processes.server._process.wait(10)


def assert_healthy(measurement: Measurement) -> None:
    assert measurement.status is Status.OK, measurement.message
    assert 0 < measurement.seconds < 1
    assert min(measurement.repeats) <= measurement.seconds <= max(measurement.repeats)
    assert measurement.error is not None
    assert 0 < measurement.error < 1e-6
    assert measurement.build_seconds > 0
    assert measurement.run_seconds > 0


def test_a_healthy_candidate(pool: MeasurePool) -> None:
    (measurement,) = pool.measure(TASK, [tiled()])
    assert_healthy(measurement)
    assert len(measurement.repeats) >= 3
    assert measurement.spread >= 0


def test_the_same_code_is_run_once() -> None:
    with MeasurePool(TASK.target, workers=2) as reusing:
        first, second, other = reusing.measure(TASK, [tiled(), tiled(), tiled(tile=8)])
        unverified = reusing.measure(TASK, [tiled()], verify=False)[0]
    if first.run_seconds == 0.0:  # the candidate that is built first is run
        first, second = second, first
    assert_healthy(first)
    assert second.repeats == first.repeats
    assert second.message == "the same code as an earlier candidate"
    assert second.run_seconds == 0.0
    assert other.repeats != first.repeats
    assert unverified.error is None
    assert unverified.run_seconds > 0


FAILURES = candidates()
WORDS = {
    "that TVM refuses": "compute_at: the loops are not perfectly nested",
    "that does not compile": "nobody",
    "that aborts": "SIGABRT",
    "with a segmentation fault": "SIGSEGV",
    "that leaves": "code 3 ",
    "that leaves as if all were well": "code 0 ",
    "that hangs": "stopped after 3.0 s",
    "that allocates 1 GB": "bad_alloc",
    "that allocates 100 GB": "bad_alloc",
    "of another shape": "Mismatched A",
    "that prints a megabyte": "differs from the float64 reference",
    "that answers NaN": "differs from the float64 reference",
    "with a wrong answer": "differs from the float64 reference",
    "that computes some rows only": "differs from the float64 reference",
    "that writes after its output": "it writes outside of C, after it",
    "that writes before its output": "it writes outside of C, before it",
    "that changes an input": "it changes its input A",
}
"""Part of the message of each failure."""


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_a_message_and_does_not_affect_others(pool: MeasurePool, name: str) -> None:
    candidate, status = FAILURES[name]
    bad, good = pool.measure(TASK, [candidate, tiled()])
    assert bad.status is status, bad
    assert WORDS[name] in bad.message
    assert bad.seconds == math.inf
    assert bad.repeats == ()
    assert_healthy(good)


def test_measurements_have_the_order_of_candidates(pool: MeasurePool) -> None:
    first, *rest, last = pool.measure(TASK, [tiled(), *(bad for bad, _ in FAILURES.values()), tiled(tile=8)])
    assert_healthy(first)
    assert [measurement.status for measurement in rest] == [status for _, status in FAILURES.values()]
    assert_healthy(last)


def test_no_candidates(pool: MeasurePool) -> None:
    assert pool.measure(TASK, []) == []


def test_candidates_are_read_in_batches(pool: MeasurePool) -> None:
    count = 0

    def endless() -> Iterator[Schedulable]:
        nonlocal count
        while True:
            count += 1
            yield Untuned(TASK)

    results = pool.stream(TASK, endless())
    indices = [next(results)[0] for _ in range(10)]
    results.close()
    assert len(set(indices)) == 10
    assert set(indices) <= set(range(16))  # candidates come in the order in which they finish
    assert count == 16


def test_closing_a_stream_ends_its_builds(pool: MeasurePool) -> None:
    results = pool.stream(TASK, [tiled(), Refused(), *[tiled()] * 6])
    assert next(results)[1].status is Status.INVALID  # comes while the first one is being built
    assert pool._builder.processes.under_way
    results.close()
    assert not pool._builder.processes.under_way
    assert_healthy(pool.measure(TASK, [tiled()])[0])


def test_one_stream_at_a_time(pool: MeasurePool) -> None:
    results = pool.stream(TASK, [tiled()] * 2)
    next(results)
    with pytest.raises(WorkerFailed, match="another stream"):
        pool.measure(TASK, [tiled()])
    results.close()


def test_other_errors_of_a_candidate_reach_the_caller(pool: MeasurePool) -> None:
    @dataclass(frozen=True)
    class Broken:
        def module(self) -> Any:
            raise ZeroDivisionError("in the sketch")

    with pytest.raises(ZeroDivisionError, match="in the sketch"):
        pool.measure(TASK, [tiled(), Broken()])
    assert not pool._builder.processes.under_way
    assert_healthy(pool.measure(TASK, [tiled()])[0])


def test_check_verifies_without_timing(pool: MeasurePool) -> None:
    measurement = pool.check(TASK, Untuned(TASK))
    assert measurement.status is Status.OK
    assert math.isnan(measurement.seconds)
    assert measurement.repeats == ()
    assert measurement.error is not None
    assert measurement.error < 1e-6
    assert pool.check(TASK, answering(matmul(added=1.0))).status is Status.WRONG


def test_checks_of_several_tasks_at_a_time(pool: MeasurePool) -> None:
    """A failing check does not end the checks of other candidates."""
    other = task_of(elementwise(topi.nn.relu), "relu")
    bad_candidates = candidates()
    requests = [(TASK, candidate) for candidate, _ in bad_candidates.values()] + [(other, Untuned(other))]
    measurements = dict(pool.checks(iter(requests)))
    assert [measurements[index].status for index in range(len(requests))] == [  # type: ignore[union-attr]
        *(status for _, status in bad_candidates.values()),
        Status.OK,
    ]
    assert not pool._builder.processes.under_way


def test_closing_checks_early_ends_their_builds(pool: MeasurePool) -> None:
    with contextlib.closing(pool.checks([(TASK, tiled())] * 4)) as results:
        assert next(results)[1].status is Status.OK  # type: ignore[union-attr]
    assert not pool._builder.processes.under_way
    assert_healthy(pool.measure(TASK, [tiled()])[0])


def test_a_task_that_cannot_be_run_does_not_end_the_checks_of_others(pool: MeasurePool) -> None:
    call = tirx.Evaluate(tirx.call_extern("int32", "no_such_function_anywhere"))
    broken = task_of(FUNC.with_body(call), "broken")
    results = dict(pool.checks([(broken, tiled()), (TASK, tiled())]))
    assert isinstance(results[0], InvalidModel)
    assert isinstance(results[1], Measurement)
    assert results[1].status is Status.OK


def test_without_verification_anything_that_runs_is_ok(pool: MeasurePool) -> None:
    (measurement,) = pool.measure(TASK, [answering(matmul(added=1.0))], verify=False)
    assert measurement.status is Status.OK
    assert measurement.error is None


def test_slow_candidates_are_timed_in_few_batches(pool: MeasurePool) -> None:
    (measurement,) = pool.measure(TASK, [Untuned(TASK)], best=1e-9)
    assert 1 <= len(measurement.repeats) <= 8


def test_builds_have_a_time_limit() -> None:
    with MeasurePool(TASK.target, limits=Limits(build_seconds=1e-4, reference_seconds=60)) as pool:
        (measurement,) = pool.measure(TASK, [Untuned(TASK)])
    assert measurement.status is Status.TIMEOUT
    assert measurement.run_seconds == 0.0


def test_a_pause_of_the_caller_does_not_time_builds_out() -> None:
    with MeasurePool(TASK.target, limits=Limits(build_seconds=1.5), workers=2) as pool:
        results = pool.stream(TASK, [unbuildable(FUNC), tiled()])
        assert next(results)[1].status is Status.BUILD_ERROR
        time.sleep(1.7)  # the other was being built when the first result came
        assert_healthy(next(results)[1])
        results.close()


def test_softmax_and_integers(pool: MeasurePool) -> None:
    for compute in (topi.nn.softmax, lambda x: topi.argmax(x, axis=1), lambda x: topi.greater(x, 0.0)):
        task = task_of(elementwise(compute))
        (measurement,) = pool.measure(task, [Untuned(task)])
        assert measurement.status is Status.OK, measurement.message
        assert measurement.error is not None
        assert measurement.error < 1e-6


def test_a_server_killed_while_idle_is_replaced(pool: MeasurePool) -> None:
    before = server_of(pool)
    kill_server(pool)
    assert_healthy(pool.measure(TASK, [tiled()])[0])
    assert server_of(pool) != before


@dataclass(frozen=True)
class Killer:
    """A candidate that kills the server of the pool when its build starts."""

    pool: MeasurePool

    def module(self) -> Any:
        kill_server(self.pool)
        return tiled().module()


def test_a_killed_server_fails_only_the_candidate_being_built(pool: MeasurePool) -> None:
    statuses = [measurement.status for measurement in pool.measure(TASK, [tiled(), Killer(pool), tiled()])]
    assert statuses[0] is Status.CRASHED  # it was being built
    assert statuses[1:] == [Status.OK, Status.OK]


def test_a_server_death_fails_only_candidates_being_built(pool: MeasurePool) -> None:
    measurements = pool.measure(TASK, [*[tiled()] * 10, Killer(pool), tiled()])
    statuses = [measurement.status for measurement in measurements]
    assert statuses.count(Status.OK) >= 10
    assert set(statuses) <= {Status.OK, Status.CRASHED}  # those that were being built


def test_killing_a_process_fails_its_candidate_only(pool: MeasurePool) -> None:
    with ThreadPoolExecutor() as executor:
        killed = executor.submit(kill_a_worker, pool, 0.02)
        measurements = pool.measure(
            TASK, [calling(FUNC, "usleep", 500_000), *(tiled(tile=tile) for tile in (4, 8, 16, 32))]
        )
        assert killed.result()
    (crashed,) = [m for m in measurements if m.status is Status.CRASHED]
    assert "SIGKILL" in crashed.message
    assert crashed.seconds == math.inf
    for measurement in measurements[1:]:
        if measurement is not crashed:
            assert_healthy(measurement)


def test_candidates_waiting_for_a_run_survive_a_server_death(pool: MeasurePool) -> None:
    results = pool.stream(TASK, [tiled()] * 4)
    measurements = [next(results)[1]]
    kill_server(pool)
    measurements += [measurement for _, measurement in results]
    assert len(measurements) == 4
    for measurement in measurements:
        assert_healthy(measurement)


def test_a_closed_pool_is_an_error() -> None:
    pool = MeasurePool(TASK.target)
    directory = pool._builder.processes.directory
    pool.close()
    pool.close()
    assert not directory.exists()
    with pytest.raises(WorkerFailed, match="the pool is closed"):
        pool.measure(TASK, [tiled()])


def test_zero_workers_are_an_error() -> None:
    with pytest.raises(InvalidOption, match=r"\bworkers\b.* 0\."):
        MeasurePool(TASK.target, workers=0)


def test_measure_opens_a_pool_for_the_call() -> None:
    good, bad = measure(TASK, [Given(tiled().module()), Refused()])
    assert_healthy(good)
    assert bad.status is Status.INVALID


@pytest.mark.parametrize("wrong", [5, None, "cpu", TASK.module])
def test_measuring_without_a_task_is_an_error(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"measure: .*\btask\b.* {kind_of(wrong)}\..*extract_tasks"):
        measure(wrong, [])


@pytest.mark.parametrize("wrong", [5, None])
def test_measuring_without_a_list_of_candidates_is_an_error(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"measure: .*\bcandidates\b.* {kind_of(wrong)}\."):
        measure(TASK, wrong)


def test_wrong_candidates_and_options_are_errors(pool: MeasurePool) -> None:
    for wrong in list[Any]([5, FUNC, _tvm.Schedule(FUNC)]):
        with pytest.raises(InvalidOption, match=rf"measure: .*\bcandidate\b.* {kind_of(wrong)}\..*Untuned"):
            pool.measure(TASK, [wrong])
    with pytest.raises(InvalidOption, match=r"Untuned: .*\btask\b.*a PrimFunc\."):
        Untuned(FUNC)
    with pytest.raises(InvalidOption, match=r"\bbest\b.*seconds greater than 0.*'fast'\."):
        pool.measure(TASK, [], best="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "abacus"}, "target: 'abacus' "),
        ({"target": None}, "target: None "),
        ({"workers": 1.5}, r"\bworkers\b.* 1\.5\."),
        ({"workers": True}, r"\bworkers\b.* True\."),
        ({"limits": 5}, r"\blimits\b.*an int\..*Limits\(…\), or None"),
    ],
)
def test_options_are_checked_before_any_process_is_started(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidOption, UnknownTarget), match=words):
        MeasurePool(**{"target": "cpu", **options})
