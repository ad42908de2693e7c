from types import SimpleNamespace

import pytest

from felixlike.measure.check import runner
from felixlike.measure.check.runner import Stopwatch


def timed(monkeypatch: pytest.MonkeyPatch, seconds: list[float], taken: list[int]) -> tuple[float, int]:
    """Time a batch whose attempts take `seconds`; the core is lost `taken` times in them. Return time and attempts."""
    started, lost = [], [0]

    def once(_: Stopwatch, calls: int) -> float:
        started.append(calls)
        lost[0] += taken[len(started) - 1]
        return seconds[len(started) - 1]

    monkeypatch.setattr(Stopwatch, "_once", once)
    monkeypatch.setattr(runner, "_cores_taken", lambda: lost[0])
    return Stopwatch({}, SimpleNamespace(type="cpu"), ()).batch(2), len(started)


def test_an_undisturbed_batch_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, [1e-3], [0]) == (1e-3, 1)


def test_a_batch_that_lost_its_core_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, [9e-3, 8e-3, 1e-3], [1, 2, 0]) == (1e-3, 3)


def test_on_a_busy_machine_the_fastest_of_a_few_attempts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, [9e-3, 5e-3, 6e-3, 7e-3], [1] * 4) == (5e-3, 4)


def test_a_long_batch_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, [1.0], [3]) == (1.0, 1)
