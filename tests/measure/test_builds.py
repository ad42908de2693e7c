"""Candidates that are built while others run, as those for a GPU: in which order things happen, and what goes wrong."""

from __future__ import annotations

import contextlib
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
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.local_pool import Local
from felixlike.measure.messages import Message
from felixlike.measure.pool import BuilderPool

TASK = task_of(matmul(), "matmul")
_NOBODY = 2**30
"""A process id that no process has."""
_PATIENCE = 20.0


@dataclass(frozen=True)
class Numbered:
    """A candidate whose module is its number."""

    number: int

    def module(self) -> int:
        return self.number


class Scripted:
    """In place of a fork server: threads that answer as candidates' processes do, and say what they do.

    until: number of a candidate → what must have happened before it ends to run: "build" or "build again", and
    another's number.  failing: those that cannot be built.  dies: the one in whose first run the server is lost, with
    all that it has forked."""

    def __init__(
        self, until: dict[int, tuple[str, int]], failing: frozenset[int] = frozenset(), dies: int | None = None
    ) -> None:
        self.generation = 1
        self.events: list[tuple[str, int]] = []
        self.late: list[int] = []
        self._until, self._failing, self._dies = until, failing, dies
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def fork(self) -> tuple[int, socket.socket]:
        mine, theirs = socket.socketpair()
        self._threads.append(threading.Thread(target=self._serve, args=[theirs]))
        self._threads[-1].start()
        return _NOBODY, mine

    def alive(self, generation: int) -> bool:
        return generation == self.generation

    def end(self, process: int, *, kill: bool) -> None:
        assert (process, kill) == (_NOBODY, True)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _note(self, what: str, number: int) -> None:
        with self._changed:
            self.events.append((what, number))
            self._changed.notify_all()

    def _serve(self, channel: socket.socket) -> None:
        with channel, contextlib.suppress(OSError, ValueError):
            number = int(messages.receive(channel)["module"])
            self._note("build" if ("build", number) not in self.events else "build again", number)
            if number in self._failing:
                messages.send(channel, {"status": Status.BUILD_ERROR, "message": "no", "elapsed": 0.1})
                return
            built: Message = {"status": Status.OK, "code": f"code of {number}", "kernels": [], "elapsed": 0.1}
            messages.send(channel, built)
            while "arguments" in (request := messages.receive(channel)) or "calls" in request:
                self._note("run", number)
                if number in self._until:
                    wanted = partial(self.events.__contains__, self._until[number])
                    with self._changed:
                        if not self._changed.wait_for(wanted, _PATIENCE):
                            self.late.append(number)
                if number == self._dies:
                    self.generation, self._dies = self.generation + 1, None
                # No two are near each other, so that none takes a turn.
                answer = {"status": Status.OK, "error": 0.0, "repeats": [10.0**-number], "strange": 0, "elapsed": 0.1}
                messages.send(channel, answer)


@contextlib.contextmanager
def scripted(server: Scripted, *, workers: int, waiting: int, ahead: bool) -> Iterator[BuilderPool]:
    """A pool whose candidates the server plays."""
    limits = Limits(run_seconds=2 * _PATIENCE, timing=Timing(turns=0))
    builder = Builder(TASK.target, limits=limits, workers=workers)
    with builder.reference_for(TASK, verify=False):
        pass  # its files are there from now on
    builder.processes.server.close()
    builder.processes.server = server  # type: ignore[assignment]
    with contextlib.closing(server), BuilderPool(builder, Local(builder, waiting=waiting, ahead=ahead)) as pool:
        yield pool


def measured(pool: BuilderPool, count: int) -> list[Measurement]:
    return pool.measure(TASK, [Numbered(i) for i in range(count)], verify=False)


@pytest.fixture(autouse=True)
def numbers_are_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no module need be written and read."""
    from felixlike import _tvm

    save = _tvm.ir.save_json
    monkeypatch.setattr(_tvm.ir, "save_json", lambda module: module if isinstance(module, int) else save(module))


def test_others_are_built_while_one_runs() -> None:
    """Each runs until the next is being built, so that all would wait in vain if building waited for running."""
    server = Scripted({i: ("build", i + 1) for i in range(7)})
    with scripted(server, workers=2, waiting=2, ahead=True) as pool:
        found = measured(pool, 8)
    assert server.late == []
    assert [m.seconds for m in found] == [10.0**-i for i in range(8)]
    assert sorted(number for what, number in server.events if what == "run") == list(range(8))


def test_on_a_cpu_nothing_is_built_while_one_runs() -> None:
    server = Scripted({})
    with scripted(server, workers=2, waiting=3, ahead=False) as pool:
        measured(pool, 6)
    assert [what for what, _ in server.events] == (["build"] * 3 + ["run"] * 3) * 2


def test_no_more_are_alive_than_a_batch_has() -> None:
    """What is built ahead waits, with memory of the GPU."""
    server = Scripted({0: ("build", 3)})
    with scripted(server, workers=8, waiting=4, ahead=True) as pool:
        first = next(results := pool.stream(TASK, [Numbered(i) for i in range(20)], verify=False))
        assert first[1].status is Status.OK
        results.close()
    begun = [number for what, number in server.events if what == "build"]
    assert server.late == []
    assert 4 <= len(begun) <= 8  # another one for each that had run


def test_failures_are_told_and_make_room() -> None:
    server = Scripted({}, failing=frozenset([0, 1, 2, 5]))
    with scripted(server, workers=2, waiting=2, ahead=True) as pool:
        found = measured(pool, 7)
    assert [m.status is Status.OK for m in found] == [False, False, False, True, True, False, True]
    assert found[0].message == "no"


def test_what_is_built_and_lost_is_built_again() -> None:
    """While others run: it takes no room from them."""
    server = Scripted({0: ("build", 2), 3: ("build again", 2)}, dies=0)
    with scripted(server, workers=3, waiting=3, ahead=True) as pool:
        found = measured(pool, 6)
    assert [m.status for m in found] == [Status.OK] * 6
    assert {number for what, number in server.events if what == "build again"} == {1, 2}
    assert server.late == []


@pytest.fixture(scope="module")
def pool() -> Iterator[BuilderPool]:
    builder = Builder(TASK.target, limits=Limits(run_seconds=1.0, memory_bytes=2**29), workers=2)
    with BuilderPool(builder, Local(builder, waiting=3, ahead=True)) as opened:
        yield opened


def test_whatever_a_candidate_does_others_are_measured(pool: BuilderPool) -> None:
    """In real processes, with turns, and the same code twice."""
    given = candidates()
    found = pool.measure(TASK, [tiled(), *(bad for bad, _ in given.values()), tiled(tile=8), tiled()])
    first, *rest, second, third = found
    assert [m.status for m in rest] == [status for _, status in given.values()]
    assert [m.status for m in (first, second, third)] == [Status.OK] * 3
    assert first.repeats == third.repeats
    assert first.repeats != second.repeats
    assert not pool._builder.processes.under_way


def test_a_process_killed_from_outside_takes_its_candidate_only(pool: BuilderPool) -> None:
    killer = threading.Thread(target=kill_a_worker, args=[pool, 0.02])
    killer.start()
    found = pool.measure(TASK, [tiled(tile=tile) for tile in (2, 4, 16, 32)])
    killer.join()
    lost = [m for m in found if m.status is Status.CRASHED]
    assert len(lost) <= 1
    assert all(m.status is Status.OK for m in found if m not in lost)


def test_a_server_that_dies_takes_only_what_it_was_at(pool: BuilderPool) -> None:
    class Killer:
        def module(self) -> Any:
            server = pool._builder.processes.server
            assert server._process is not None
            server._process.kill()
            server._process.wait(10)
            return tiled(tile=1).module()

    found = pool.measure(TASK, [tiled(tile=64), Killer(), tiled(tile=2), tiled(tile=4)])
    assert found[0].status in (Status.CRASHED, Status.OK)  # it was being built, or built already
    assert [m.status for m in found[1:]] == [Status.OK] * 3
    assert not pool._builder.processes.under_way
