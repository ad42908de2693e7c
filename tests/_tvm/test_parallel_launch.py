"""Parallel loops run each task once, with more threads than cores too, and do not wait for a worker without a core."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike._tvm.parallel_launch import _functions
from felixlike._util import scratch
from felixlike.codegen.build import Builder, function
from felixlike.hardware import placement, resolve_target
from felixlike.hardware.probe import usable_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems use TVM's launch")

_LAMBDA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _kernel(tiles: int, steps: int) -> Callable[[Any], None]:
    """Return a compiled function that replaces each y of int64[tiles] by y + (y² | 5) modulo 2¹⁶, `steps` times.

    It goes through all numbers before one returns (Klimov and Shamir, 2003), and no compiler knows a shorter way.
    """
    build, tirx = Builder("int64", 1), _tvm.tirx
    y = tirx.decl_buffer((tiles,), "int64", "y")

    def tile(i: Any) -> Any:
        five, most = tirx.const(5, "int64"), tirx.const(2**16 - 1, "int64")
        following = tirx.bitwise_and(y[i] + tirx.bitwise_or(y[i] * y[i], five), most)
        return build.loop("step", steps, lambda _: tirx.BufferStore(y, following, [i]))

    func = function([y], build.loop("i", tiles, tile, "PARALLEL"), None)
    module = _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return codegen.compile_primfuncs(module, resolve_target("cpu")).jit()["main"]  # type: ignore[no-any-return]


def _expected(start: int, steps: int) -> int:
    """Return the value after so many steps, which tells whether one was left out or done twice."""
    for _ in range(steps):
        start = (start + (start * start | 5)) % 2**16
    return start


def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Return the result of a function that a new thread runs, with a pool of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(120)
    assert results
    return results[0]


@contextmanager
def _busy(processors: list[int]) -> Iterator[None]:
    """Keep each of these processors busy with a process."""
    program = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", program]
    others = [subprocess.Popen([*command, str(processor)], stdout=subprocess.PIPE) for processor in processors]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["in turns", "after sleep"])
def test_each_task_runs_once(threads: int, pause: float) -> None:
    kernel, calls = _kernel(7, 100), 5 if pause else 5000

    def run() -> list[int]:
        placement.pin_threads(threads)
        y = _tvm.runtime.tensor(np.arange(7))
        for _ in range(calls):
            kernel(y)
            time.sleep(pause) if pause else None
        return list(y.numpy())

    assert _in_a_thread(run) == [_expected(i, 100 * calls % 2**16) for i in range(7)]


@pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")
def test_a_busy_core_does_not_stop_a_call() -> None:
    """TVM's launch takes 4 ms instead of 30 µs, since its workers give up the core after each loop."""
    kernel = _kernel(2, 10_000)

    def run() -> tuple[float, float, list[int]]:
        placement.hold()
        y, typical = _tvm.runtime.tensor(np.arange(2)), list[float]()
        workers = [min(worker.processors) for worker in placement.placed()[1:]]
        for processors in ([], workers):
            with _busy(processors):
                seconds = []
                for _ in range(500):
                    began = time.perf_counter()
                    kernel(y)
                    seconds.append(time.perf_counter() - began)
            typical.append(statistics.quantiles(seconds)[0])
        return typical[0], typical[1], list(y.numpy())

    alone, beside, values = _in_a_thread(run)
    assert values == [_expected(i, 10_000 * 1000 % 2**16) for i in range(2)]
    assert beside < 10 * alone, (alone, beside)


def test_a_stopped_worker_is_replaced_by_the_caller() -> None:
    """A worker that has not begun its task leaves it to the caller; one that has is waited for."""
    begun, go = threading.Event(), threading.Event()
    ran: list[tuple[int, int]] = []

    def task(number: int, environment: Any, data: Any) -> int:
        ran.append((number, threading.get_native_id()))
        if threading.get_native_id() != caller[0]:
            begun.set()
            go.wait(60)
        else:
            begun.wait(60)  # until the worker has its task
            threading.Timer(0.2, go.set).start()
        return 0

    caller: list[int] = []

    def run() -> int:
        placement.pin_threads(2)
        caller.append(threading.get_native_id())
        return int(_functions().launch(_LAMBDA(task), None, 0))

    assert _in_a_thread(run) == 0
    assert sorted(number for number, _ in ran) == [0, 1]
    assert go.is_set()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_task_is_an_error_of_the_loop(failing: int) -> None:
    launched = _LAMBDA(lambda task, environment, data: -1 if task == failing else 0)

    def run() -> list[bool]:
        placement.pin_threads(2)
        return [_functions().launch(launched, None, 0) != 0 for _ in range(100)]

    assert _in_a_thread(run) == [True] * 100


def test_the_functions_are_compiled_where_only_memory_is_writable() -> None:
    """As in a container whose file systems are read-only, except the one in memory."""
    program = """
import tempfile

def none():
    raise FileNotFoundError("no usable temporary directory")

tempfile.gettempdir = none
from felixlike import _tvm
_tvm.prepare_launch()
"""
    if not scratch.MEMORY_FOLDER.is_dir():
        pytest.skip("this system has no file system in memory")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_workers_end_with_their_thread() -> None:
    def run() -> list[int]:
        placement.pin_threads(3)
        return [worker.thread for worker in placement.placed()[1:]]

    workers = _in_a_thread(run)
    assert len(workers) == 2
    for _ in range(100):
        if not any(os.path.exists(f"/proc/self/task/{worker}") for worker in workers):
            return
        time.sleep(0.1)
    raise AssertionError("workers are left")
