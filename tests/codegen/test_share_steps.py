"""`shared_steps` computes each step after the one before, with any number of workers, also if there are few cores."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike.codegen.annotations import Steps
from felixlike.codegen.build import Builder, function
from felixlike.codegen.passes import shared_steps
from felixlike.hardware import resolve_target
from felixlike.hardware.placement import pin_threads

_STEPS, _TILES = 200, 6


def _recurrence() -> Any:
    """Return y[t + 1, i] = i + Σ_j y[t, j], modulo a prime, for which each element needs the whole previous step."""
    build, tirx = Builder("int64", 1), _tvm.tirx
    y = tirx.decl_buffer((_STEPS + 1, _TILES), "int64", "y")

    def tile(t: Any, i: Any) -> Any:
        total = sum((y[t, j] for j in range(_TILES)), start=i)
        return tirx.BufferStore(y, tirx.floormod(total, tirx.const(1009, "int64")), [t + 1, i])

    def step(t: Any) -> Any:
        return build.loop("i", _TILES, lambda i: tile(t, i), "PARALLEL")

    func = function([y], build.loop("t", _STEPS, step, mark=Steps()), None)
    return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _expected() -> np.ndarray[Any, np.dtype[np.int64]]:
    y = np.zeros((_STEPS + 1, _TILES), np.int64)
    for t in range(_STEPS):
        y[t + 1] = (y[t].sum() + np.arange(_TILES)) % 1009
    return y


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_step_reads_the_whole_step_before(workers: int) -> None:
    compiled, expected = codegen.compile_primfuncs(_recurrence(), resolve_target("cpu")), _expected()
    right: list[bool] = []

    def run() -> None:
        pin_threads(workers)  # of this thread's own pool
        for _ in range(20):
            y = _tvm.runtime.tensor(np.zeros_like(expected))
            compiled["main"](y)
            right.append(bool((y.numpy() == expected).all()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert right == [True] * 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems use TVM's launch, which waits for all workers")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_caller_computes_all_steps_if_no_worker_comes() -> None:
    compiled, expected = codegen.compile_primfuncs(_recurrence(), resolve_target("cpu")), _expected()
    main, y = compiled["main"], _tvm.runtime.tensor(np.zeros_like(expected))
    codes: list[int] = []

    def run() -> None:
        pin_threads(3)
        main(y)
        child = os.fork()  # has no workers
        if child == 0:
            signal.alarm(30)
            y.copyfrom(np.zeros_like(expected))
            main(y)
            os._exit(0 if (y.numpy() == expected).all() else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert codes == [0]


def test_there_is_one_parallel_region() -> None:
    func = shared_steps(_recurrence())["main"]
    (region,) = [a for a in _tvm.found(func.body, _tvm.tirx.AttrStmt) if a.attr_key == "pragma_parallel_launch_point"]
    assert {str(loop.loop_var.name) for loop in _tvm.found(region.body, _tvm.tirx.For)} == {"t", "others", "i", "next"}
    assert not any(Steps.on(loop) for loop in _tvm.found(func.body, _tvm.tirx.For))
