"""When a signal ends a run, when it only makes the rest brief, and when it is left to others."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from felixlike._util import interrupts
from felixlike._util.interrupts import Interrupts, Terminated, joined, terminable

CTRL_C = signal.SIGINT


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals that follow each other at once are not one; all handlers are as before."""
    monkeypatch.setattr(interrupts, "_TOGETHER", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def press(times: int = 1, number: int = CTRL_C) -> None:
    for _ in range(times):
        signal.raise_signal(number)


def test_before_the_search_it_is_a_keyboard_interrupt() -> None:
    with Interrupts() as found:
        with pytest.raises(KeyboardInterrupt):
            press()
        assert found.code == 130
        assert not found.hurried


def test_the_first_ends_the_search_and_another_one_makes_the_rest_brief() -> None:
    with Interrupts() as found:
        with found.search():
            press()
        assert found.ended
        assert not found.hurried
        assert found.attempt(lambda: "step", lambda: "brief") == "step"
        press()  # while a compiler is at work, say
        assert found.attempt(lambda: "step", lambda: "brief") == "brief"
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_second_one_before_the_search_is_left_is_not_lost() -> None:
    with Interrupts() as found:
        with found.search(), contextlib.ExitStack() as leaving:
            leaving.callback(press)
            press()
        assert found.ended
        assert found.hurried


def test_a_step_gives_way() -> None:
    with Interrupts() as found:
        with found.search():
            pass
        assert found.attempt(press, lambda: None) is None
        assert found.hurried
        assert not found.ended
        assert found.code == 130
        with pytest.raises(KeyboardInterrupt):
            found.attempt(lambda: None, press)


def test_an_interrupt_that_somebody_raises_is_like_one_that_arrives() -> None:
    def fail() -> Any:
        raise KeyboardInterrupt

    found = Interrupts()  # no handlers, as in a thread
    assert found.attempt(fail, lambda: 3) == 3
    assert (found.hurried, found.code) == (True, 130)
    with pytest.raises(KeyboardInterrupt):
        found.attempt(lambda: 1, fail)


def test_one_that_was_swallowed_ends_the_search_all_the_same() -> None:
    with Interrupts() as found, found.search():
        with contextlib.suppress(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):
            found.check()
    found.check()  # afterwards it does nothing


def test_a_key_pressed_twice_is_pressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_TOGETHER", 60.0)
    with Interrupts() as found:
        with found.search():
            try:
                press()
            finally:
                press(3)
        assert not found.hurried


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_are_like_ctrl_c_where_that_is_wanted(number: signal.Signals, code: int) -> None:
    with terminable():
        with pytest.raises(Terminated) as raised:
            press(number=number)
        assert raised.value.number == number
        with joined() as found:
            with found.search():
                press(number=number)
            assert found.ended
            assert found.code == code
            with joined() as again:
                assert again is found


def test_what_a_program_does_about_signals_stays() -> None:
    arrived = []
    before = [signal.signal(number, lambda *_: arrived.append(1)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with terminable(), Interrupts() as found, found.search():
            press()
            press(number=signal.SIGTERM)
        assert len(arrived) == 2
        assert found.code == 0
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_a_thread_has_no_handlers() -> None:
    codes = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with terminable(), joined() as found, found.search():
            interrupt()
        codes.append(found.code)

    thread = threading.Thread(target=run)
    with joined() as mine:
        thread.start()
        thread.join()
    assert codes == [130]
    assert mine.code == 0
