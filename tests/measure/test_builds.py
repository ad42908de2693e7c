"""Candidates that are built while others run, as for a GPU: the order of builds and runs, and failures."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from support.faulty import candidates, kill_a_worker, matmul, task_of, tiled

from felixlike.measure import Limits, Measurement, Status, messages
from felixlike.measure.limits import Timing
from felixlike.measure.local.build_limit import BuildLimit
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.local_pool import Local
from felixlike.measure.messages import Message
from felixlike.measure.pool import BuilderPool

TASK = task_of(matmul(), "matmul")
_NO_PROCESS = 2**30
"""A process id that no process has."""
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Numbered:
    """A candidate whose module is its number."""

    number: int

    def module(self) -> int:
        return self.number


class Scripted:
    """A fork server of threads that answer like the processes of candidates and record builds and runs.

    Builds begin and end in the order of the candidates, whatever the order in which threads get a core.

    until: candidate number → the event ("build" or "build again", and another candidate's number) that must happen
    before its run ends.  failing: candidates whose build fails.  dies: the candidate during whose first run the server
    and all its processes are lost.  stuck: the candidate whose build lasts until its process is ended."""

    def __init__(
        self,
        until: dict[int, tuple[str, int]],
        failing: frozenset[int] = frozenset(),
        dies: int | None = None,
        stuck: int | None = None,
    ) -> None:
        self.generation = 1
        self.events: list[tuple[str, int]] = []
        self.late: list[int] = []
        self._until, self._failing, self._dies, self._stuck = until, failing, dies, stuck
        self._built = 0
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def fork(self) -> tuple[int, socket.socket]:
        mine, theirs = socket.socketpair()
        self._threads.append(threading.Thread(target=self._serve, args=[theirs]))
        self._threads[-1].start()
        return _NO_PROCESS, mine

    def alive(self, generation: int) -> bool:
        return generation == self.generation

    def end(self, process: int, *, kill: bool) -> None:
        assert (process, kill) == (_NO_PROCESS, True)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(_TIMEOUT_SECONDS)

    def _record(self, action: str, number: int) -> None:
        with self._changed:
            self.events.append((action, number))
            self._changed.notify_all()

    def _serve(self, channel: socket.socket) -> None:
        with channel, contextlib.suppress(OSError, ValueError):
            number = int(messages.receive(channel)["module"])
            built: Message = {"status": Status.OK, "code": f"code of {number}", "kernels": [], "elapsed": 0.1}
            if number in self._failing:
                built = {"status": Status.BUILD_ERROR, "message": "no", "elapsed": 0.1}
            with self._changed:
                self._changed.wait_for(lambda: self._built >= number, _TIMEOUT_SECONDS)
                self._record("build" if ("build", number) not in self.events else "build again", number)
                if number != self._stuck:
                    messages.send(channel, built)
                self._built = max(self._built, number + 1)
            if number in self._failing:
                return
            while "arguments" in (request := messages.receive(channel)) or "calls" in request:
                self._record("run", number)
                if number in self._until:
                    happened = partial(self.events.__contains__, self._until[number])
                    with self._changed:
                        if not self._changed.wait_for(happened, _TIMEOUT_SECONDS):
                            self.late.append(number)
                if number == self._dies:
                    self.generation, self._dies = self.generation + 1, None
                # No two times are close to each other, so interleaved timing skips all candidates.
                answer = {"status": Status.OK, "error": 0.0, "repeats": [10.0**-number], "strange": 0, "elapsed": 0.1}
                messages.send(channel, answer)


@contextlib.contextmanager
def scripted(
    server: Scripted, *, workers: int, waiting: int, ahead: bool, slow_build: float = math.inf
) -> Iterator[BuilderPool]:
    """Open a pool whose fork server is `server`."""
    limits = Limits(run_seconds=2 * _TIMEOUT_SECONDS, timing=Timing(turns=0), slow_build=slow_build)
    builder = Builder(TASK.target, limits=limits, workers=workers)
    with builder.reference_for(TASK, verify=False):
        pass  # creates the files of the reference
    builder.processes.server.close()
    builder.processes.server = server  # type: ignore[assignment]
    with contextlib.closing(server), BuilderPool(builder, Local(builder, waiting=waiting, ahead=ahead)) as pool:
        yield pool


def measured(pool: BuilderPool, count: int) -> list[Measurement]:
    return pool.measure(TASK, [Numbered(i) for i in range(count)], verify=False)


@pytest.fixture(autouse=True)
def numbers_are_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `save_json` return numbers unchanged, so that no module is serialized."""
    from felixlike import _tvm

    save = _tvm.ir.save_json
    monkeypatch.setattr(_tvm.ir, "save_json", lambda module: module if isinstance(module, int) else save(module))


def test_candidates_are_built_while_one_runs() -> None:
    """Each run lasts until the next build starts, so all runs would time out if builds waited for runs."""
    server = Scripted({i: ("build", i + 1) for i in range(7)})
    with scripted(server, workers=2, waiting=2, ahead=True) as pool:
        measurements = measured(pool, 8)
    assert server.late == []
    assert [m.seconds for m in measurements] == [10.0**-i for i in range(8)]
    assert sorted(number for action, number in server.events if action == "run") == list(range(8))


def test_on_a_cpu_nothing_is_built_while_one_runs() -> None:
    server = Scripted({})
    with scripted(server, workers=2, waiting=3, ahead=False) as pool:
        measured(pool, 6)
    assert [action for action, _ in server.events] == (["build"] * 3 + ["run"] * 3) * 2


def test_live_candidates_are_limited_by_the_batch_size() -> None:
    """A candidate that is built ahead holds memory of the GPU while it waits."""
    server = Scripted({0: ("build", 3)})
    with scripted(server, workers=8, waiting=4, ahead=True) as pool:
        first = next(results := pool.stream(TASK, [Numbered(i) for i in range(20)], verify=False))
        assert first[1].status is Status.OK
        results.close()
    builds = [number for action, number in server.events if action == "build"]
    assert server.late == []
    assert 4 <= len(builds) <= 8  # one more for each candidate that has run


def test_build_failures_are_reported_and_free_their_slots() -> None:
    server = Scripted({}, failing=frozenset([0, 1, 2, 5]))
    with scripted(server, workers=2, waiting=2, ahead=True) as pool:
        measurements = measured(pool, 7)
    assert [m.status is Status.OK for m in measurements] == [False, False, False, True, True, False, True]
    assert measurements[0].message == "no"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_build_that_takes_far_longer_than_the_others_is_given_up(ahead: bool) -> None:
    server = Scripted({}, stuck=1)
    with scripted(server, workers=2, waiting=8, ahead=ahead, slow_build=0.1) as pool:
        measurements = measured(pool, 8)
    assert [m.status for m in measurements] == [Status.OK, Status.TIMEOUT, *[Status.OK] * 6]
    assert 0.5 <= measurements[1].build_seconds < Limits().build_seconds
    assert "others were built in 0.1 s" in measurements[1].message


def test_the_limit_of_builds_is_relative_to_their_median() -> None:
    limit = BuildLimit(Limits(build_seconds=10.0, slow_build=5.0))
    for seconds in (0.3, 0.3, 0.3, 0.2, 4.0):
        limit.add(seconds)
        assert limit.seconds == 10.0  # too few to tell
    limit.add(0.3)
    assert limit.seconds == pytest.approx(1.5)
    for _ in range(20):
        limit.add(0.01)
    assert limit.seconds == 0.5
    for _ in range(50):
        limit.add(9.0)
    assert limit.seconds == 10.0


def test_candidates_lost_with_the_server_are_built_again() -> None:
    """Rebuilding happens while others run and does not take their slots."""
    server = Scripted({0: ("build", 2), 3: ("build again", 2)}, dies=0)
    with scripted(server, workers=3, waiting=3, ahead=True) as pool:
        measurements = measured(pool, 6)
    assert [m.status for m in measurements] == [Status.OK] * 6
    assert {number for action, number in server.events if action == "build again"} == {1, 2}
    assert server.late == []


@pytest.fixture(scope="module")
def pool() -> Iterator[BuilderPool]:
    builder = Builder(TASK.target, limits=Limits(run_seconds=1.0, memory_bytes=2**29), workers=2)
    with BuilderPool(builder, Local(builder, waiting=3, ahead=True)) as opened:
        yield opened


def test_bad_candidates_do_not_affect_others(pool: BuilderPool) -> None:
    """The candidates run in real processes, with interleaved timing, and two have the same code."""
    bad_candidates = candidates()
    measurements = pool.measure(TASK, [tiled(), *(bad for bad, _ in bad_candidates.values()), tiled(tile=8), tiled()])
    first, *rest, second, third = measurements
    assert [m.status for m in rest] == [status for _, status in bad_candidates.values()]
    assert [m.status for m in (first, second, third)] == [Status.OK] * 3
    assert first.repeats == third.repeats
    assert first.repeats != second.repeats
    assert not pool._builder.processes.under_way


def test_killing_a_process_fails_its_candidate_only(pool: BuilderPool) -> None:
    killer = threading.Thread(target=kill_a_worker, args=[pool, 0.02])
    killer.start()
    measurements = pool.measure(TASK, [tiled(tile=tile) for tile in (2, 4, 16, 32)])
    killer.join()
    crashed = [m for m in measurements if m.status is Status.CRASHED]
    assert len(crashed) <= 1
    assert all(m.status is Status.OK for m in measurements if m not in crashed)


def test_a_server_death_fails_only_the_candidate_being_built(pool: BuilderPool) -> None:
    class Killer:
        def module(self) -> Any:
            server = pool._builder.processes.server
            assert server._process is not None
            server._process.kill()
            server._process.wait(10)
            return tiled(tile=1).module()

    measurements = pool.measure(TASK, [tiled(tile=64), Killer(), tiled(tile=2), tiled(tile=4)])
    assert measurements[0].status in (Status.CRASHED, Status.OK)  # its build was running or had ended
    assert [m.status for m in measurements[1:]] == [Status.OK] * 3
    assert not pool._builder.processes.under_way
