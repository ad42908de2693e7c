"""Tests for pausing garbage collection."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from felixlike._util.garbage import collecting_later, set_aside
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


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()  # what conftest.py has set aside
    yield
    gc.freeze()


def _in_a_cycle() -> weakref.ref[Any]:
    """Return a reference to an object that only a collection finds."""

    class Node:
        pass

    node = Node()
    vars(node)["node"] = node
    return weakref.ref(node)


@pytest.mark.usefixtures("_nothing_set_aside")
def test_objects_are_set_aside() -> None:
    before = _in_a_cycle()
    with set_aside():
        with set_aside():
            during = _in_a_cycle()
        gc.collect()
        assert before() is not None
        assert during() is None
    gc.collect()
    assert before() is None
    assert not gc.get_freeze_count()


def test_objects_that_the_caller_has_set_aside_stay() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with set_aside():
        assert count / 2 < gc.get_freeze_count() <= count  # some may end meanwhile
    assert count / 2 < gc.get_freeze_count() <= count
