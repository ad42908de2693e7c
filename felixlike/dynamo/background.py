"""Tune compiled graphs in another process while the program continues.

Inputs: a compiled graph and its module. Output: the same graph with better schedules once the process has found some.

A thread takes the graphs of this process one by one. For each it starts `felixlike tune`, which waits until no other
process of this user tunes on this machine. Only then is the graph exported for it. The tuning process ends when this
process ends for any reason, when the graph is no longer used, and when its weights change.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import subprocess
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from felixlike._util import scratch
from felixlike._util.child_process import environment, python_command
from felixlike.dynamo.options import Options
from felixlike.dynamo.weights import WeightGuard
from felixlike.errors import FelixlikeError


class CompiledGraph(Protocol):
    """The part of `backend.CompiledGraph` that tuning uses."""

    weights: WeightGuard
    call: Callable[..., Any]


_END_SECONDS = 5.0
"""Seconds between terminating a process and killing it. Chosen by hand."""


class Tuning:
    """The tuning of one graph.

    Args:
        compiled: The compiled graph that receives the result.
        module: The part of the graph that is compiled.
        examples: Example inputs of the module.
        options: The options.
        store: Path of the record store.
    """

    def __init__(
        self, compiled: CompiledGraph, module: Any, examples: tuple[Any, ...], options: Options, store: str
    ) -> None:
        self._compiled = weakref.ref(compiled, lambda _: self.cancel())
        self._module, self._examples, self._options, self._store = module, examples, options, store
        self._lock = threading.RLock()  # `cancel` may run in a thread that holds it, at a garbage collection
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Stop the process, or prevent its start."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.terminate()

    def run(self) -> None:
        """Tune the graph and replace its `call`. After an error the previous version stays in use."""
        folder: Path | None = None
        try:
            folder = scratch.folder("compile")
            process = self._started(folder)
            if process is None or process.stdout is None or process.stdin is None or self._cancelled:
                return
            if process.stdout.readline() == b"ready\n":
                self._export(folder / "graph.pt2")
                process.stdin.write(b"go\n")
                process.stdin.flush()
                if process.wait() == 0:
                    self._exchange(folder / "tuned.flx")
        except Exception:  # of torch.export, the disk or the process; the previous version stays in use
            pass
        finally:
            self._end()
            if folder is not None:
                scratch.discard(folder)
            self._module, self._examples = None, ()

    def _started(self, folder: Path) -> subprocess.Popen[bytes] | None:
        """Start the tuning process; return None if tuning was cancelled."""
        words = ["tune", str(folder / "graph.pt2"), "--quiet", "--store", self._store]
        words += ["--seconds", str(self._options.seconds), "--output", str(folder / "tuned.flx")]
        words += ["--in-background-of", str(os.getpid())]
        words += ["--precision", self._options.precision]
        for name, value in {"trials": self._options.trials, "tolerance": self._options.tolerance}.items():
            if value is not None:
                words += [f"--{name}", str(value)]
        with self._lock:
            if self._cancelled or _stopped.is_set():
                return None
            self._process = subprocess.Popen(
                python_command("felixlike", *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must only reach the user's process
                env=environment(),
            )
            return self._process

    def _export(self, path: Path) -> None:
        """Export the module to a file."""
        torch.export.save(self._module.exported(self._examples), path)

    def _exchange(self, path: Path) -> None:
        """Load the tuned model and use it, unless the weights have changed."""
        from felixlike.api import load

        compiled = self._compiled()
        if compiled is not None and compiled.weights.hold():
            with contextlib.suppress(FelixlikeError, OSError):
                compiled.call = load(path)

    def _end(self) -> None:
        """Terminate the process, and kill it if it does not end."""
        process = self._process
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """Detach from the tuning process, which belongs to the parent, after a fork."""
        self._lock = threading.RLock()  # the parent's thread may have held the other one
        if self._process is not None:
            self._process.returncode = 0  # so that Popen does not wait for it


class _Worker:
    """The thread that tunes the graphs of this process one by one."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Tuning] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._current: Tuning | None = None

    def add(self, tuning: Tuning) -> None:
        """Queue a graph, and start the thread if necessary."""
        self._waiting.put(tuning)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="felixlike-tuning")
                self._thread.start()

    def stop(self) -> None:
        """Stop the current tuning process and wait for it."""
        current, thread = self._current, self._thread
        if current is not None:
            current.cancel()
        if thread is not None and thread.is_alive():
            thread.join(_END_SECONDS + 1.0)

    def forget(self) -> None:
        """Detach from the current tuning process after a fork."""
        if self._current is not None:
            self._current.forget()

    def _run(self) -> None:
        """Tune queued graphs until the program ends."""
        while not _stopped.is_set():
            try:
                self._current = self._waiting.get(timeout=1.0)
            except queue.Empty:
                continue
            self._current.run()
            self._current = None


_stopped = threading.Event()
_worker = _Worker()


def tune(compiled: CompiledGraph, module: Any, examples: tuple[Any, ...], options: Options, store: str) -> Tuning:
    """Queue a graph for tuning; for the arguments see `Tuning`."""
    tuning = Tuning(compiled, module, examples, options, store)
    _worker.add(tuning)
    return tuning


def _stop() -> None:
    """Stop tuning at exit. Measurements are already in the store."""
    _stopped.set()
    _worker.stop()


atexit.register(_stop)


def _after_fork() -> None:
    """Create a new worker in a forked process, which has none of its parent's threads."""
    global _worker
    _worker.forget()
    _worker = _Worker()


os.register_at_fork(after_in_child=_after_fork)
