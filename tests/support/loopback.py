"""A tracker and servers on this machine: TVM's own commands in separate processes, on free ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from felixlike.errors import TrackerFailed
from felixlike.hardware.probe import host_cores
from felixlike.measure.rpc.tracker import Address, Tracker

_HOST = "127.0.0.1"
_START_SECONDS = 90.0


class Loopback:
    """Context manager that starts a tracker and ends all its processes at exit.

    Attributes:
        where: HOST:PORT of the tracker."""

    def __init__(self) -> None:
        self._processes: dict[Address, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="felixlike-loopback-")
        self._logs = Path(self._folder.name) / "logs"
        self._logs.mkdir()
        # Servers do not need torch, which tvm_ffi imports if it can, and which takes longer than the rest of the start.
        (Path(self._folder.name) / "torch.py").write_text("raise ImportError\n")
        address = self._start("tvm.exec.rpc_tracker")
        self.where = f"{_HOST}:{address[1]}"
        self._until(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for address in tuple(self._processes):
            self.kill(address)
        self._folder.cleanup()

    def start(self, **counts: int) -> None:
        """Start this number of servers for each key and wait until they are registered."""
        for key, count in counts.items():
            for _ in range(count):
                self._start("tvm.exec.rpc_server", "--tracker", self.where, "--key", key)
        self._until(lambda: all(self._free(key) >= count for key, count in counts.items()))

    def kill(self, address: Address) -> None:
        """Kill a server and all processes that it has started."""
        process = self._processes.pop(address)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, module: str, *options: str) -> Address:
        port = _free_port()
        log = (self._logs / f"{port}.log").open("wb")
        path = os.pathsep.join([self._folder.name, *filter(None, [os.environ.get("PYTHONPATH")])])
        ports = ("--host", _HOST, "--port", str(port), "--port-end", str(port + 1))
        with log:
            self._processes[_HOST, port] = subprocess.Popen(
                [sys.executable, "-m", module, *ports, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TVM_NUM_THREADS": str(host_cores()), "PYTHONPATH": path},
            )
        return _HOST, port

    def _answers(self) -> bool:
        try:
            Tracker(self.where).servers()
        except TrackerFailed:
            return False
        return True

    def _free(self, key: str) -> int:
        summary = Tracker(self.where).servers().get(key)
        return summary.free if summary else 0

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not condition():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes.values()):
                logs = "\n".join(path.read_text() for path in sorted(self._logs.iterdir()))
                self.__exit__(None, None, None)
                raise RuntimeError(f"tracker or server did not start:\n{logs}")
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
