"""`RpcPool` measures candidates on two servers of this machine, including failures of candidates and servers."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faulty import Given, calling, candidates, matmul, task_of, tiled
from support.loopback import Loopback
from support.operators import OPERATORS

from felixlike import _tvm
from felixlike.errors import InvalidOption, TrackerFailed, WorkerFailed, WrongDevice
from felixlike.frontend import make_task
from felixlike.frontend.constants import PACKING
from felixlike.hardware import device_name, host_device
from felixlike.measure import Limits, Measurement, RpcPool, Status
from felixlike.measure.rpc.server_pool import ServerPool
from felixlike.measure.rpc.tracker import Tracker
from felixlike.records import make_record
from felixlike.symbolic import sketches

FUNC = matmul()
TASK = task_of(FUNC, "matmul")
NAME = device_name(TASK.target)
LIMITS = Limits(run_seconds=4.0, memory_bytes=2**29)


@pytest.fixture(scope="module")
def pool(loopback: Loopback) -> Iterator[RpcPool]:
    with RpcPool(TASK.target, tracker=loopback.where, key="cpu", limits=LIMITS, workers=2, reuse=False) as opened:
        yield opened


def assert_healthy(measurement: Measurement) -> None:
    assert measurement.status is Status.OK, measurement.message
    assert 0 < measurement.seconds < 1
    assert len(measurement.repeats) >= 1
    assert measurement.error is not None
    assert 0 < measurement.error < 1e-6
    assert measurement.build_seconds > 0
    assert measurement.run_seconds > 0
    assert measurement.device == NAME


UNDETECTED = ("that writes before its output", "that changes an input")
"""Failures that servers do not detect; see felixlike/measure/check/guarded_buffers.py."""

FAILURES = {name: candidate for name, candidate in candidates().items() if name not in UNDETECTED}
WORDS = {
    "that TVM refuses": "compute_at: the loops are not perfectly nested",
    "that does not compile": "nobody",
    "that aborts": "its process on the server died 2 times",
    "with a segmentation fault": "its process on the server died",
    "that leaves": "its process on the server died",
    "that leaves as if all were well": "its process on the server died",
    "that hangs": "stopped after 4.",
    "that allocates 1 GB": "bad_alloc",
    "that allocates 100 GB": "bad_alloc",
    "of another shape": "A.shape[0]",
    "that prints a megabyte": "differs from the float64 reference",
    "that answers NaN": "differs from the float64 reference",
    "with a wrong answer": "differs from the float64 reference",
    "that computes some rows only": "differs from the float64 reference",
    "that writes after its output": "it writes outside of C, after it",
}
"""Part of the message of each failure."""


def test_bad_candidates_of_all_kinds_leave_both_servers_working(pool: RpcPool, loopback: Loopback) -> None:
    first, *rest, last = pool.measure(TASK, [tiled(), *(bad for bad, _ in FAILURES.values()), tiled(tile=8)])
    assert_healthy(first)
    assert_healthy(last)
    for measurement, (name, (_, status)) in zip(rest, FAILURES.items(), strict=True):
        assert measurement.status is status, (name, measurement)
        assert WORDS[name] in measurement.message, name
        assert measurement.seconds == math.inf
    assert len(Tracker(loopback.where).servers()["cpu"].addresses) == 2
    assert all(probe.problem == "" for probe in pool.survey(TASK))


def test_survey_describes_both_servers(pool: RpcPool, loopback: Loopback) -> None:
    probes = pool.survey(TASK)
    assert {server.address for server in probes} == set(Tracker(loopback.where).servers()["cpu"].addresses)
    assert {server.device for server in probes} == {NAME} == set(pool.devices)
    assert {server.version for server in probes} == {_tvm.version()}
    for server in probes:
        assert server.measurement is not None
        assert server.measurement.status is Status.OK


def test_two_candidates_run_at_the_same_time(pool: RpcPool, tmp_path: Path) -> None:
    """Opening a pipe waits until another process has opened its other end."""
    os.mkfifo(tmp_path / "pipe")
    ends = [calling(FUNC, "open", str(tmp_path / "pipe"), mode) for mode in (os.O_RDONLY, os.O_WRONLY)]
    assert [measurement.status for measurement in pool.measure(TASK, ends)] == [Status.WRONG, Status.WRONG]


def test_constants_are_packed_on_the_server(pool: RpcPool) -> None:
    task = make_task(OPERATORS["dense_bias_relu"](small_size=True), TASK.target, name="dense", constants=[1, 2])
    sketch = sketches(task)[0]
    packing = Given(sketch.schedule(sketch.sample(1, seed=4)[0].tolist()).mod)
    assert PACKING in packing.module().script()
    (measurement,) = pool.measure(task, [packing])
    assert measurement.status is Status.OK, measurement.message
    assert measurement.error is not None
    assert measurement.error < 1e-5


def test_checks_run_on_this_machine(pool: RpcPool) -> None:
    checked = pool.check(TASK, tiled())
    assert checked.status is Status.OK
    assert math.isnan(checked.seconds)
    assert checked.device == ""


def test_a_stream_can_be_closed_early(pool: RpcPool) -> None:
    stream = pool.stream(TASK, [tiled(tile=tile) for tile in (2, 4, 8, 16, 32)])
    next(stream)
    with pytest.raises(WorkerFailed, match="another stream"):
        pool.measure(TASK, [tiled()])
    stream.close()
    assert_healthy(pool.measure(TASK, [tiled()])[0])


def test_wrong_tasks_and_candidates_are_errors(pool: RpcPool) -> None:
    wrong: Any = None
    with pytest.raises(InvalidOption, match=r"measure: .*\btask\b.*None\."):
        pool.measure(wrong, [tiled()])
    with pytest.raises(InvalidOption, match=r"measure: .*\bcandidates\b.*None\."):
        pool.measure(TASK, wrong)
    with pytest.raises(InvalidOption, match=r"measure: .*\bcandidate\b.*None\..*Untuned"):
        pool.measure(TASK, [tiled(), wrong])
    with pytest.raises(InvalidOption, match=r"\bbest\b.* -1\."):
        pool.measure(TASK, [], best=-1)


def test_candidates_of_a_killed_server_move_to_another(loopback: Loopback) -> None:
    """One server is killed while a candidate sleeps on each and others wait: all candidates are still measured.
    After the second server is killed, the error says how to start one."""
    loopback.start(mortal=2)
    victim, last = Tracker(loopback.where).servers()["mortal"].addresses
    pool = RpcPool(TASK.target, tracker=loopback.where, key="mortal", limits=LIMITS, patience=1.0, reuse=False)
    with pool:
        assert pool.devices == {NAME}
        sleepers = [calling(FUNC, "usleep", 2_000_000) for _ in range(2)]
        stream = pool.stream(TASK, [*sleepers, *(tiled(tile=tile) for tile in (4, 8, 16, 32))])
        killer = threading.Timer(1.5, loopback.kill, [victim])
        killer.start()
        measurements = dict(stream)
        killer.join()
        assert sorted(measurements) == list(range(6))
        assert {measurements.pop(0).status, measurements.pop(1).status} == {Status.WRONG}
        for measurement in measurements.values():
            assert_healthy(measurement)

        stream = pool.stream(TASK, [tiled(tile=tile) for tile in (4, 8, 16, 32)])
        assert_healthy(next(stream)[1])
        loopback.kill(last)
        with pytest.raises(WorkerFailed, match=r"'mortal'.*`python -m tvm\.exec"):
            list(stream)


def test_a_candidate_whose_session_dies_on_this_machine_runs_again(pool: RpcPool) -> None:
    """As where a server sends what ends TVM's client: this says nothing about the candidate."""
    processes = pool._remote._processes

    def kill() -> None:
        sessions: list[Any] = []
        while not sessions:
            time.sleep(0.1)
            sessions = [trial for trial in tuple(processes.under_way) if "server" in trial.request]
        time.sleep(0.2)
        os.kill(sessions[0]._process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    (measurement,) = pool.measure(TASK, [calling(FUNC, "usleep", 1_000_000)])
    killer.join()
    assert measurement.status is Status.WRONG


def test_servers_of_another_kind_are_refused(loopback: Loopback) -> None:
    target = _tvm.Target({"kind": "llvm", "mcpu": "nehalem", "num-cores": host_device().cores})
    with RpcPool(target, tracker=loopback.where, key="cpu", limits=LIMITS) as pool:
        both = f"{loopback.where}.* {host_device().mcpu} .*nehalem; 127.*nehalem"
        with pytest.warns(RuntimeWarning, match="nehalem"), pytest.raises(WrongDevice, match=both):
            pool.measure(TASK, [tiled()])
        with pytest.raises(WrongDevice, match=both):
            _ = pool.devices


def test_an_unfit_server_is_skipped_while_others_fit(loopback: Loopback) -> None:
    server_pool = ServerPool(loopback.where, "cpu")
    first, second = server_pool.registered().addresses
    with pytest.warns(RuntimeWarning, match=rf"127\.0\.0\.1:{first[1]} .*: it is old"):
        server_pool.refuse({first: "it is old"})
    assert server_pool.is_refused(first)
    assert not server_pool.is_refused(second)
    with pytest.raises(WrongDevice, match=r"it is old; .*it is slow"):
        server_pool.refuse({second: "it is slow"})


def test_a_key_without_servers_is_an_error(loopback: Loopback) -> None:
    with pytest.raises(TrackerFailed, match=r"'gpu' \(.*: cpu.*\)"):
        RpcPool(TASK.target, tracker=loopback.where, key="gpu")


def test_identical_code_runs_once(loopback: Loopback) -> None:
    with RpcPool(TASK.target, tracker=loopback.where, key="cpu", limits=LIMITS) as pool:
        first, second = (pool.measure(TASK, [tiled()])[0] for _ in range(2))
    assert_healthy(first)
    assert second.repeats == first.repeats
    assert second.device == NAME
    assert second.message == "the same code as an earlier candidate"
    assert second.run_seconds == 0.0


def test_records_name_the_device_of_the_server(pool: RpcPool) -> None:
    (measurement,) = pool.measure(TASK, [tiled()])
    record = make_record(TASK, "sketch", (1,), measurement)
    assert record.device == NAME
    assert record.measurement.device == ""
