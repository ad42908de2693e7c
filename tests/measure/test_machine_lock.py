"""Only one process measures on a machine at a time, and waiting for it has a time limit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from felixlike._util.child_process import environment
from felixlike.measure.local import machine_lock
from felixlike.measure.local.machine_lock import alone_on_machine

HOLDER = """
import sys
from felixlike.measure.local.machine_lock import alone_on_machine
with alone_on_machine():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a lock name of this test, so that tests in other processes can measure."""
    monkeypatch.setattr(machine_lock, "NAME", f"\0felixlike-test-{time.time_ns()}")
    monkeypatch.setattr(machine_lock, "_impatient_until", 0.0)


def test_threads_wait_for_each_other() -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with alone_on_machine() as alone:
                assert alone
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_waiting_for_the_lock_has_a_limit() -> None:
    with alone_on_machine() as first, alone_on_machine(seconds=0.05) as second:
        started = time.monotonic()
        with alone_on_machine(seconds=60.0) as third:  # the next attempt does not wait either
            assert time.monotonic() - started < 30.0
        assert (first, second, third) == (True, False, False)
    with alone_on_machine(seconds=0.0) as alone:
        assert alone


def test_a_killed_process_releases_the_lock() -> None:
    script = f"from felixlike.measure.local import machine_lock; machine_lock.NAME = {machine_lock.NAME!r}\n{HOLDER}"
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with alone_on_machine(seconds=0.0) as alone:
            assert not alone
        machine_lock._impatient_until = 0.0
        holder.kill()
        with alone_on_machine(seconds=30.0) as alone:
            assert alone


def test_measuring_continues_if_the_lock_cannot_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "NAME", "/no/such/folder/name")
    with alone_on_machine() as alone:
        assert not alone
