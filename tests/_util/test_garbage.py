"""Tests for pausing garbage collection."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from felixlike._util.garbage import collecting_later
from felixlike.errors import InvalidModel
from felixlike.frontend import import_model


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_collection_pauses_and_goes_on() -> None:
    with collecting_later():
        with collecting_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_goes_on_after_an_error() -> None:
    with pytest.raises(InvalidModel):
        import_model("nothing.txt")
    assert gc.isenabled()


def test_disabled_collection_stays_disabled() -> None:
    gc.disable()
    import_model(torch.nn.Linear(4, 8), ((1, 4),))
    assert not gc.isenabled()


def test_collection_waits_for_all_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def step() -> None:
        with collecting_later():
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=step)
    with collecting_later():
        other.start()
        assert entered.wait(10)
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()
