"""Tune compiled graphs in another process while their calls go on.

In: a compiled graph and its module. Out: the same graph with better schedules, when the process has found some.

A thread takes the graphs of this process one after the other. For each it starts `felixlike tune`, which waits until no
other process of this user tunes on this machine; only then is the graph exported for it. The process ends when this one
does, however it ends, when the graph is not used any more, and when its weights have changed.
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
    """What a tuner needs of a compiled graph: whether its weights are still those, and what to exchange."""

    weights: WeightGuard
    call: Callable[..., Any]


_END_SECONDS = 5.0
"""How long a process that is told to end may take before it is killed."""


class Tuning:
    """One graph to be tuned.

    Args:
        compiled: Gets the result.
        module: The part of the graph that is compiled.
        examples: Its inputs.
        store: The path of the store."""

    def __init__(
        self, compiled: CompiledGraph, module: Any, examples: tuple[Any, ...], options: Options, store: str
    ) -> None:
        self._compiled = weakref.ref(compiled, lambda _: self.cancel())
        self._module, self._examples, self._options, self._store = module, examples, options, store
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End the process, or never start it."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.terminate()

    def run(self) -> None:
        """Tune the graph and exchange what is called. Errors leave what is compiled in use."""
        folder: Path | None = None
        try:
            folder = scratch.folder("compile")
            process = self._started(folder)
            if process is None or process.stdout is None or process.stdin is None:
                return
            if process.stdout.readline() == b"ready\n":
                self._export(folder / "graph.pt2")
                process.stdin.write(b"go\n")
                process.stdin.flush()
                if process.wait() == 0:
                    self._exchange(folder / "tuned.flx")
        except Exception:  # torch.export, the disk, the process: what is compiled stays in use
            pass
        finally:
            self._end()
            if folder is not None:
                scratch.discard(folder)
            self._module, self._examples = None, ()

    def _started(self, folder: Path) -> subprocess.Popen[bytes] | None:
        """The process that tunes; None where nobody wants it any more."""
        words = ["tune", str(folder / "graph.pt2"), "--quiet", "--store", self._store]
        words += ["--seconds", str(self._options.seconds), "--output", str(folder / "tuned.flx")]
        words += ["--in-background-of", str(os.getpid())]
        if self._options.trials is not None:
            words += ["--trials", str(self._options.trials)]
        with self._lock:
            if self._cancelled or _stopped.is_set():
                return None
            self._process = subprocess.Popen(
                python_command("felixlike", *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the user's process
                env=environment(),
            )
            return self._process

    def _export(self, path: Path) -> None:
        from felixlike._util.torch_modes import alone

        with alone(exports=True), torch.no_grad():
            torch.export.save(torch.export.export(self._module, self._examples, strict=False), path)

    def _exchange(self, path: Path) -> None:
        from felixlike.api import load

        compiled = self._compiled()
        if compiled is not None and compiled.weights.hold():
            with contextlib.suppress(FelixlikeError, OSError):
                compiled.call = load(path)

    def _end(self) -> None:
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
        """Leave the process to the parent, in a process that was forked from it."""
        if self._process is not None:
            self._process.returncode = 0  # so that it is not waited for


class _Worker:
    """The thread that tunes the graphs of this process, one after the other."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Tuning] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._current: Tuning | None = None

    def add(self, tuning: Tuning) -> None:
        self._waiting.put(tuning)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="felixlike-tuning")
                self._thread.start()

    def stop(self) -> None:
        """End the process under way and wait for it."""
        current, thread = self._current, self._thread
        if current is not None:
            current.cancel()
        if thread is not None and thread.is_alive():
            thread.join(_END_SECONDS + 1.0)

    def forget(self) -> None:
        if self._current is not None:
            self._current.forget()

    def _run(self) -> None:
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
    """Have a graph tuned when its turn comes."""
    tuning = Tuning(compiled, module, examples, options, store)
    _worker.add(tuning)
    return tuning


def _stop() -> None:
    """What was measured is in the store; the rest is not worth waiting for."""
    _stopped.set()
    _worker.stop()


atexit.register(_stop)


def _after_fork() -> None:
    """A forked process has none of its parent's threads, and leaves its parent's processes alone."""
    global _worker
    _worker.forget()
    _worker = _Worker()


os.register_at_fork(after_in_child=_after_fork)
