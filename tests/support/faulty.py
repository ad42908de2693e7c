"""Tasks and candidates, valid and faulty, for tests of measuring."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidSchedule
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.measure import MeasurePool, Schedulable, Status

te, tirx, topi = _tvm.te, _tvm.tirx, _tvm.topi


@dataclass(frozen=True)
class Given:
    """A candidate with a fixed module."""

    scheduled: Any

    def module(self) -> Any:
        return self.scheduled


@dataclass(frozen=True)
class Refused:
    """A candidate that TVM refuses to schedule."""

    def module(self) -> Any:
        raise InvalidSchedule("the loops are not perfectly nested", where="compute_at")


def task_of(func: Any, name: str = "task") -> Task:
    return make_task(func, resolve_target("cpu"), name=name)


def matmul(size: int = 64, added: float = 0.0, rows: int | None = None, first: int = 0) -> Any:
    """C = A·B (+ added), or only `rows` of its rows from `first` on, some of which may lie outside of C."""
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j] + added / size, axis=k), name="C")
    func = te.create_prim_func([a, b, c])
    if rows is None:
        return func
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    outer = schedule.get_loops(schedule.get_sblock("C", "main"))[0]
    loop = schedule.get(outer)
    partial_loop = tirx.For(loop.loop_var, first, rows, loop.kind, loop.body)
    schedule.state.replace(schedule.get_sref(outer), partial_loop)
    return schedule.mod["main"]


def tiled(size: int = 64, tile: int = 16) -> Given:
    """Return a valid schedule of matmul with parallel rows and tiled, vectorized columns."""
    schedule = _tvm.Schedule(_tvm.IRModule({"main": matmul(size)}))
    i, j, k = schedule.get_loops(schedule.get_sblock("C", "main"))
    outer, inner = schedule.split(j, [None, tile])
    schedule.reorder(i, outer, k, inner)
    schedule.parallel(i)
    schedule.vectorize(inner)
    return Given(schedule.mod)


def calling(func: Any, symbol: str, *arguments: Any) -> Given:
    """Return a candidate that calls a C function and computes nothing."""
    body = tirx.Evaluate(tirx.call_extern("int32", symbol, *arguments))
    return Given(_tvm.IRModule({"main": func.with_body(body).with_attr("global_symbol", "main")}))


def spoiling(size: int = 64) -> Given:
    """Return a candidate that computes A·B and then sets an element of A to zero."""
    func = matmul(size)
    body = func.body.block.body
    store = tirx.BufferStore(func.params[0], tirx.FloatImm("float32", 0.0), [0, 0])
    block = func.body.block
    root = _tvm.s_tir.SBlock([], [], [], "root", tirx.SeqStmt([body, store]), alloc_buffers=list(block.alloc_buffers))
    return answering(func.with_body(_tvm.s_tir.SBlockRealize([], True, root)))


def hog(size: int, floats: int) -> Given:
    """Return a candidate with matmul's signature and an intermediate buffer of `floats` elements."""
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    intermediate = te.compute((floats,), lambda i: a[i % size, 0] * 2.0, name="big")
    c = te.compute((size, size), lambda i, j: intermediate[i * 1000 + j] + b[i, j], name="C")
    return answering(te.create_prim_func([a, b, c]))


def elementwise(compute: Callable[[Any], Any], shape: tuple[int, ...] = (8, 32), dtype: str = "float32") -> Any:
    """Return a PrimFunc that applies `compute` to one input tensor."""
    x = te.placeholder(shape, dtype, name="X")
    return te.create_prim_func([x, compute(x)])


def unbuildable(func: Any) -> Given:
    """Return a candidate that uses an undefined variable."""
    body = tirx.Evaluate(tirx.call_extern("int32", "abs", tirx.Var("nobody", "int32")))
    return Given(_tvm.IRModule({"main": func.with_body(body).with_attr("global_symbol", "main")}))


def answering(func: Any) -> Given:
    """Return a candidate with this function as its module."""
    return Given(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))


def candidates() -> dict[str, tuple[Schedulable, Status]]:
    """Return valid and faulty candidates for `matmul()` with the status that measuring them with 0.5 GB must report."""
    func = matmul()
    return {
        "that TVM refuses": (Refused(), Status.INVALID),
        "that does not compile": (unbuildable(func), Status.BUILD_ERROR),
        "that aborts": (calling(func, "abort"), Status.CRASHED),
        "with a segmentation fault": (calling(func, "raise", int(signal.SIGSEGV)), Status.CRASHED),
        "that leaves": (calling(func, "_exit", 3), Status.CRASHED),
        "that leaves as if all were well": (calling(func, "_exit", 0), Status.CRASHED),
        "that hangs": (calling(func, "pause"), Status.TIMEOUT),
        "that allocates 1 GB": (hog(64, 2**28), Status.OUT_OF_MEMORY),
        "that allocates 100 GB": (hog(64, 25 * 2**30), Status.OUT_OF_MEMORY),
        "of another shape": (tiled(32), Status.RUN_ERROR),
        "that prints a megabyte": (calling(func, "puts", "x" * 2**20), Status.WRONG),
        "that answers NaN": (answering(matmul(added=math.nan)), Status.WRONG),
        "with a wrong answer": (answering(matmul(added=1.0)), Status.WRONG),
        "that computes some rows only": (answering(matmul(rows=60)), Status.WRONG),
        "that writes after its output": (answering(matmul(rows=66)), Status.WRONG),
        "that writes before its output": (answering(matmul(rows=66, first=-2)), Status.WRONG),
        "that changes an input": (spoiling(), Status.WRONG),
    }


def kill_a_worker(pool: MeasurePool, delay: float) -> bool:
    """Kill one of the pool's build or measuring processes, `delay` seconds after the first one exists.

    Returns:
        Whether there was such a process."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        server = pool._builder.processes.server._process
        if server is not None and _children(server.pid):
            break
        time.sleep(0.001)
    time.sleep(delay)
    for process in _children(server.pid) if server is not None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            return True
    return False


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]
