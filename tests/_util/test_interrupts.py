"""Signals end a run, shorten its remaining steps, or are left to the handlers of the program."""

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
    """Treat signals in quick succession as separate ones, and check that all handlers are restored."""
    monkeypatch.setattr(interrupts, "TOGETHER_SECONDS", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def press(times: int = 1, number: int = CTRL_C) -> None:
    for _ in range(times):
        signal.raise_signal(number)


def test_an_interrupt_before_the_search_raises_keyboard_interrupt() -> None:
    with Interrupts() as run:
        with pytest.raises(KeyboardInterrupt):
            press()
        assert run.code == 130
        assert not run.hurried


def test_the_first_interrupt_ends_the_search_and_the_second_shortens_the_rest() -> None:
    with Interrupts() as run:
        with run.search():
            press()
        assert run.ended
        assert not run.hurried
        assert run.attempt(lambda: "step", lambda: "brief") == "step"
        press()  # for example while a compiler runs
        assert run.attempt(lambda: "step", lambda: "brief") == "brief"
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_second_interrupt_while_the_search_ends_is_not_lost() -> None:
    with Interrupts() as run:
        with run.search(), contextlib.ExitStack() as leaving:
            leaving.callback(press)
            press()
        assert run.ended
        assert run.hurried


def test_an_interrupted_step_is_replaced_by_its_fallback() -> None:
    with Interrupts() as run:
        with run.search():
            pass
        assert run.attempt(press, lambda: None) is None
        assert run.hurried
        assert not run.ended
        assert run.code == 130
        with pytest.raises(KeyboardInterrupt):
            run.attempt(lambda: None, press)


def test_a_raised_keyboard_interrupt_is_handled_like_a_signal() -> None:
    def fail() -> Any:
        raise KeyboardInterrupt

    run = Interrupts()  # no handlers, as in a thread
    assert run.attempt(fail, lambda: 3) == 3
    assert (run.hurried, run.code) == (True, 130)
    with pytest.raises(KeyboardInterrupt):
        run.attempt(lambda: 1, fail)


def test_a_suppressed_interrupt_still_ends_the_search() -> None:
    with Interrupts() as run, run.search():
        with contextlib.suppress(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):
            run.check()
    run.check()  # has no effect after the search


def test_signals_in_quick_succession_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "TOGETHER_SECONDS", 60.0)
    with Interrupts() as run:
        with run.search():
            try:
                press()
            finally:
                press(3)
        assert not run.hurried


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_terminable_handles_other_signals_like_ctrl_c(number: signal.Signals, code: int) -> None:
    with terminable():
        with pytest.raises(Terminated) as raised:
            press(number=number)
        assert raised.value.number == number
        with joined() as run:
            with run.search():
                press(number=number)
            assert run.ended
            assert run.code == code
            with joined() as nested:
                assert nested is run


def test_handlers_of_the_program_are_kept() -> None:
    arrived = []
    before = [signal.signal(number, lambda *_: arrived.append(1)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with terminable(), Interrupts() as run, run.search():
            press()
            press(number=signal.SIGTERM)
        assert len(arrived) == 2
        assert run.code == 0
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def test_a_thread_installs_no_handlers() -> None:
    codes = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def thread_main() -> None:
        with terminable(), joined() as thread_run, thread_run.search():
            interrupt()
        codes.append(thread_run.code)

    thread = threading.Thread(target=thread_main)
    with joined() as main_run:
        thread.start()
        thread.join()
    assert codes == [130]
    assert main_run.code == 0
