"""A small library that goes to a server ahead of a candidate, and keeps the server from harm.

TVM's server forks a process for every session, but stops serving for good when that process crashes
(tvm/rpc/server.py, _serving). So the first thing done in a session is to fork once more, by a library of C calls: the
session goes on in the child, the parent waits and leaves with exit code 0 however the child ended. The library also
reads files of the server (what processor it has) and limits the session's memory. It is machine code for any processor
of this machine's kind, so that it runs where a candidate would not.
"""

from pathlib import Path
from typing import Any

import numpy as np

from felixlike import _tvm

_PR_SET_PDEATHSIG, _SIGKILL, _RLIMIT_DATA, _O_RDONLY = 1, 9, 2, 0  # of Linux
_PATH_BYTES = 4096
_CHUNK_BYTES = 2**16


def module() -> Any:
    """The IRModule of the library: fork, read, limit."""

    def call(name: str, *arguments: Any) -> Any:
        return _tvm.tirx.call_extern("int32", name, *arguments)

    def run(name: str, *arguments: Any) -> Any:
        return _tvm.tirx.Evaluate(call(name, *arguments))

    def wide(value: int) -> Any:
        return _tvm.tirx.const(value, "int64")

    wait_and_leave = _tvm.tirx.SeqStmt([run("waitpid", -1, wide(0), 0), run("_exit", 0)])
    die_with_parent = run("prctl", _PR_SET_PDEATHSIG, wide(_SIGKILL))
    fork = _tvm.PrimFunc([], _tvm.tirx.IfThenElse(call("fork") != 0, wait_and_leave, die_with_parent))

    read = _with_buffers(path=(_PATH_BYTES, "uint8"), at=(1, "int64"), into=(_CHUNK_BYTES, "uint8"))
    path, at, into = read.params
    opened = call("open", path.data, _O_RDONLY)
    read = read.with_body(run("pread", opened, into.data, wide(_CHUNK_BYTES), at[0]))

    limit = _with_buffers(limits=(2, "int64"))
    limit = limit.with_body(run("setrlimit", _RLIMIT_DATA, limit.params[0].data))
    functions = {"fork": fork, "read": read, "limit": limit}
    return _tvm.IRModule(
        {name: function.with_attr("global_symbol", f"felixlike_{name}") for name, function in functions.items()}
    )


def _with_buffers(**buffers: tuple[int, str]) -> Any:
    """A PrimFunc that takes these, without a body worth keeping."""
    te = _tvm.te
    return te.create_prim_func(
        [te.placeholder((size,), name=name, dtype=dtype) for name, (size, dtype) in buffers.items()]
    )


class CrashGuard:
    """The library at work on a server."""

    def __init__(self, session: Any, library: Path) -> None:
        """Send the library and go on in a process of its own.  session: TVM's RPC session, just opened: threads that
        are there already would be lost."""
        session.upload(str(library))
        self._library = session.load_module(library.name)
        self._device = session.cpu()
        self._library["felixlike_fork"]()

    def read(self, path: str, *, until: str | None = None) -> str:
        """The text of a file of the server, up to the part that has `until` in it; empty if it cannot be read."""
        name = np.zeros(_PATH_BYTES, np.uint8)
        name[: len(path)] = np.frombuffer(path.encode(), np.uint8)
        text = b""
        while True:
            into = self._tensor(np.zeros(_CHUNK_BYTES, np.uint8))
            self._library["felixlike_read"](self._tensor(name), self._tensor(np.array([len(text)])), into)
            chunk = bytes(into.numpy()).rstrip(b"\0")
            text += chunk
            if not chunk or (until is not None and until.encode() in text):
                return text.decode(errors="replace")

    def limit_memory(self, extra: int) -> None:
        """Let the session have `extra` bytes of private memory above what it has now."""
        lines = self.read("/proc/self/status").splitlines()
        used = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
        if used is not None:
            self._library["felixlike_limit"](self._tensor(np.full(2, used + extra)))

    def _tensor(self, contents: Any) -> Any:
        return _tvm.runtime.tensor(contents, self._device)
