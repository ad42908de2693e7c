"""Tests for the threads of a saved model's calls in new processes: their cores, their number and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from felixlike import _tvm, runtime
from felixlike.frontend import import_model
from felixlike.hardware.probe import usable_cores


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved model that computes x + x of 4096 numbers on several threads."""

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    imported = import_model(Twice(), ((64, 64),))
    (task,) = imported.tasks
    schedule = _tvm.Schedule(task.module)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.parallel(schedule.get_loops(block)[0])
    path = tmp_path_factory.mktemp("threads") / "twice.flx"
    runtime.save(runtime.compile_model(imported, {task.key: schedule}), path, report={})
    return path


_GLIBC = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[-1].split(".")))  # type: ignore[union-attr]

_LEAVE = "sys.exit" if _GLIBC <= (2, 36) else "os._exit"
"""How a forked child ends. At a regular exit TVM joins the threads that the child has not got (docs/internals.md)."""


def run(program: str, model: Path) -> str:
    """Return what a program prints. The model is `call`, its input `x`, and no OMP_ or TVM_ variables are set."""
    begin = f"""
import os, sys, threading
before, mask = dict(os.environ), os.sched_getaffinity(0)
import torch
from felixlike import errors, runtime
from felixlike.hardware import placement
call, x = runtime.load({str(model)!r})[0], torch.ones(64, 64)
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "TVM_"))}
    command = [sys.executable, "-c", begin + program]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_only_models_with_parallel_kernels_are_parallel(model: Path) -> None:
    """Serial models skip looking for the caller's cores, which takes 0.4 µs."""
    assert runtime.load(model)[0].parallel
    plain = runtime.compile_model(import_model(nn.ReLU(), ((4, 4),)))
    assert not plain.parallel
    runtime.save(plain, model.with_name("plain.flx"), report={})
    assert not runtime.load(model.with_name("plain.flx"))[0].parallel


@pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")
def test_each_calling_thread_has_its_own_workers_and_the_process_is_unchanged(model: Path) -> None:
    program = """
import subprocess
import felixlike

def on(thread):
    "The processor that a thread was last on."
    with open(f"/proc/self/task/{thread}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[36])

def use():
    for _ in range(100):
        y = call(x)
    assert bool((y == 2).all())
    caller, *workers = placement.placed()
    assert workers and placement.apart([caller, *workers]), (caller, workers)
    assert all(on(worker.thread) in worker.processors for worker in workers), workers
    assert os.sched_getaffinity(0) == mask
    found.append({worker.thread for worker in workers})

found = []
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
use()
assert len(set().union(*found)) == sum(map(len, found)), found
felixlike.optimize(torch.nn.Linear(8, 8), [(2, 8)], trials=1, progress=False)
assert os.sched_getaffinity(0) == mask
assert dict(os.environ) == before
subprocess.run(["env"], check=True)
"""
    printed = run(program, model)
    assert "PATH=" in printed
    assert "TVM_" not in printed


@pytest.mark.skipif(usable_cores() < 2, reason="a call on one core leaves no threads behind")
def test_a_parallel_call_in_a_forked_process_is_refused(model: Path) -> None:
    program = """
import multiprocessing
import time
import felixlike

def calls(x):
    return call(x)

def forked(attempt, leave=LEAVE):
    "Whether an attempt succeeds in a child."
    process = os.fork()
    if process == 0:
        leave(0 if attempt() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0

def is_refused(attempt=lambda: call(x)):
    try:
        attempt()
    except errors.ForkedProcess as error:
        return '"spawn"' in error.remedy
    return False

def works():
    return bool((call(x) == 2).all())

def works_in_a_thread():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(works()))
    thread.start()
    thread.join()
    return answers == [True]

assert forked(works), "before the first call"
assert works()
assert forked(is_refused)
time.sleep(0.5)
assert forked(is_refused), "while the workers were asleep"
assert forked(lambda: is_refused(lambda: felixlike.optimize(torch.nn.Linear(8, 8), [(2, 8)], progress=False)))
assert forked(works_in_a_thread, os._exit)
with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.apply(calls, (x,))
        raise SystemExit("not refused")
    except errors.ForkedProcess:
        pass
assert works()
"""
    run(program.replace("LEAVE", _LEAVE), model)


@pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")
def test_a_call_runs_on_the_given_number_of_threads(model: Path) -> None:
    program = """
def used():
    assert bool((call(x) == 2).all())
    places = placement.placed()
    assert placement.apart(places)
    return len(places)

most = placement.threads()
call.threads = 1
assert used() == 1
call.threads = 2
assert used() == 2
call.threads = 1
assert used() == 1
call.threads = 0
assert used() == most
other = runtime.load(MODEL)[0]
other.threads = 1
assert (used(), other(x).sum().item(), len(placement.placed()), used()) == (most, 8192.0, 1, most)
counts = []
def work():
    call.threads = 1
    counts.append(used())
    call.threads = most + 1
    counts.append(used())
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert counts == [1, most], counts  # a pool does not grow
assert os.sched_getaffinity(0) == mask and dict(os.environ) == before
"""
    run(program.replace("MODEL", repr(str(model))), model)
