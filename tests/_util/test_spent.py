"""`Spent` counts every second of a run once: by step, by task, and by what processes did meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from felixlike._util import spent
from felixlike._util.spent import Spent, Timeline


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in a list, which tests advance."""
    current = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: current[0])
    return current


def test_every_second_counts_once(now: list[float]) -> None:
    clock = Spent()
    now[0] += 3
    with clock.running(), spent.on("outer"):
        now[0] += 1
        with spent.on_task("a"), spent.on("inner"):
            now[0] += 4
        with contextlib.suppress(ValueError), spent.on("inner"):
            now[0] += 2
            raise ValueError
        now[0] += 8
    clock.update()
    assert clock.seconds == {"else": 3.0, "outer": 9.0, "inner": 6.0}
    assert clock.tasks["a"]["inner"] == 4.0
    assert sum(clock.seconds.values()) == now[0] - 100


def test_the_end_of_a_wait_counts_as_timing(now: list[float]) -> None:
    clock = Spent()
    with clock.running(), spent.on_task("a"):
        with spent.on(spent.CHECKING):
            now[0] += 2
        spent.worked(spent.CHECKING, 2.0, timed=1.5)
    assert clock.seconds[spent.CHECKING] == clock.tasks["a"][spent.CHECKING] == 0.5
    assert clock.seconds[spent.TIMING] == clock.tasks["a"][spent.TIMING] == 1.5
    work = {row: sum(bins) for row, bins in clock.timeline.rows.items()}
    assert work == pytest.approx({spent.HERE: 0.0, spent.CHECKING: 0.5, spent.TIMING: 1.5})  # this process only waited


def test_timing_beyond_the_wait_is_not_moved(now: list[float]) -> None:
    clock = Spent()
    with clock.running():
        with spent.on(spent.CHECKING):
            now[0] += 1
        spent.worked(spent.CHECKING, 5.0, timed=4.0)  # this process did other work meanwhile
    assert clock.seconds[spent.CHECKING] == 0.0
    assert clock.seconds[spent.TIMING] == 1.0


def test_without_a_clock_and_in_other_threads_nothing_is_counted() -> None:
    with spent.on("alone"), spent.on_task("a"):
        spent.worked(spent.BUILDING, 1.0)
    clock = Spent()

    def other() -> None:
        with spent.on("elsewhere"):
            pass

    with clock.running():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert spent.clock() is None
    assert "elsewhere" not in clock.seconds


def test_long_timelines_have_wider_intervals() -> None:
    timeline = Timeline()
    timeline.add("here", 0.0, 0.3)
    timeline.add("other", 1.0, 1000.0)
    assert sum(timeline.rows["here"]) == pytest.approx(0.3)
    assert sum(timeline.rows["other"]) == pytest.approx(999.0)
    assert all(len(bins) <= 65 for bins in timeline.rows.values())
    assert max(timeline.rows["other"]) <= timeline.width + 1e-9
