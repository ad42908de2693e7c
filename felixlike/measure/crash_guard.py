"""Protect an RPC server from crashing candidates with a small library that is uploaded before the candidate.

TVM's server forks a process for every session, but stops serving for good when that process crashes
(tvm/rpc/server.py, _serving). Therefore each session first calls the library, which forks once more: the session
continues in the child, and the parent waits for it and exits with code 0 whatever the child's exit status. The library
also reads files of the server (to identify its processor) and limits the session's memory. It is compiled for the
baseline of this machine's instruction set, so it runs on processors on which a candidate might not.
"""

from pathlib import Path
from typing import Any

import numpy as np

from felixlike import _tvm

_PR_SET_PDEATHSIG, _SIGKILL, _RLIMIT_DATA, _O_RDONLY = 1, 9, 2, 0  # of Linux
_PATH_BYTES = 4096
"""Size of the buffer for a path, bytes: Linux's PATH_MAX."""

_CHUNK_BYTES = 2**16
"""Bytes of a file that one call reads; chosen by hand."""


def module() -> Any:
    """Return the library's IRModule, with the functions felixlike_fork, felixlike_read and felixlike_limit."""

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
    """Return a PrimFunc with these buffers as parameters; its body is a placeholder."""
    te = _tvm.te
    return te.create_prim_func(
        [te.placeholder((size,), name=name, dtype=dtype) for name, (size, dtype) in buffers.items()]
    )


class CrashGuard:
    """Client of the library on a server."""

    def __init__(self, session: Any, library: Path) -> None:
        """Upload the library and fork: the session continues in the child.

        Args:
            session: TVM's RPC session. It must be new, since the fork drops all threads but the calling one.
            library: Path of the compiled library.
        """
        session.upload(str(library))
        self._library = session.load_module(library.name)
        self._device = session.cpu()
        self._library["felixlike_fork"]()

    def read(self, path: str, *, until: str | None = None) -> str:
        """Return the text of a file on the server, up to the chunk that contains `until`; "" if it is unreadable."""
        name = np.zeros(_PATH_BYTES, np.uint8)
        name[: len(path)] = np.frombuffer(path.encode(), np.uint8)
        content = b""
        while True:
            buffer = self._tensor(np.zeros(_CHUNK_BYTES, np.uint8))
            self._library["felixlike_read"](self._tensor(name), self._tensor(np.array([len(content)])), buffer)
            chunk = bytes(buffer.numpy()).rstrip(b"\0")
            content += chunk
            if not chunk or (until is not None and until.encode() in content):
                return content.decode(errors="replace")

    def limit_memory(self, extra: int) -> None:
        """Limit the session's private memory to its present size plus `extra` bytes."""
        lines = self.read("/proc/self/status").splitlines()
        used = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
        if used is not None:
            self._library["felixlike_limit"](self._tensor(np.full(2, used + extra)))

    def _tensor(self, contents: Any) -> Any:
        """Return a tensor on the server's CPU."""
        return _tvm.runtime.tensor(contents, self._device)
