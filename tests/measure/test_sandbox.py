"""A process that talks to a measuring server has no rights, even if a hostile server takes it over."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from felixlike.cli import servers
from felixlike.measure import messages
from felixlike.measure.child import sandbox, seccomp_filter
from felixlike.measure.local.fork_client import ForkServer
from felixlike.measure.local.processes import Processes

pytestmark = pytest.mark.skipif(
    bool(sandbox.missing()), reason=f"this machine lacks {'; '.join(sandbox.missing()) or 'nothing'}"
)

_ATTEMPTS = """
import ctypes, json, os, platform, resource, socket, sys, threading
from pathlib import Path
from felixlike.measure.child import sandbox

home, parent = Path(sys.argv[1]), os.getppid()
allowed, other, channel = map(int, sys.argv[2:])
inherited = os.open(home / "secret", os.O_RDWR)
sandbox.enter([home / "library.so", home / "candidate"], allowed, keep=channel)

def connect(port):
    with socket.socket() as made:
        made.settimeout(5)
        made.connect(("127.0.0.1", port))

def called(*numbers):
    if ctypes.CDLL(None).syscall(*numbers) < 0:
        raise OSError

attempts = {
    "read what is needed": lambda: (home / "library.so").read_text(),
    "read below what is needed": lambda: (home / "candidate" / "file").read_text(),
    "look into what is needed": lambda: os.listdir(home / "candidate"),
    "import": lambda: __import__("xml.dom.minidom"),
    "answer": lambda: os.write(channel, b"x"),
    "connect": lambda: connect(allowed),
    "read a secret": lambda: (home / "secret").read_text(),
    "read passwords": lambda: Path("/etc/passwd").read_text(),
    "read the environment": lambda: Path("/proc/self/environ").read_text(),
    "look around": lambda: os.listdir(home),
    "use an inherited file": lambda: os.write(inherited, b"x"),
    "write a new file": lambda: (home / "new").write_text("x"),
    "write a file": lambda: (home / "library.so").write_text("x"),
    "append to a file": lambda: open(home / "candidate" / "file", "a"),
    "empty a file": lambda: os.truncate(home / "library.so", 0),
    "remove a file": lambda: os.unlink(home / "candidate" / "file"),
    "rename a file": lambda: os.rename(home / "candidate" / "file", home / "candidate" / "other"),
    "make a folder": lambda: os.mkdir(home / "candidate" / "folder"),
    "link a file": lambda: os.symlink("x", home / "candidate" / "link"),
    "change a mode": lambda: os.chmod(home / "library.so", 0o777),
    "run a program": lambda: os.execv("/bin/true", ["true"]),
    "fork": os.fork,
    "start a thread": lambda: threading.Thread(target=print).start(),
    "signal its parent": lambda: os.kill(parent, 0),
    "signal a thread of its parent": lambda: called(234 if platform.machine() == "x86_64" else 131, parent, parent, 0),
    "connect elsewhere": lambda: connect(other),
    "listen": lambda: socket.create_server(("127.0.0.1", 0)),
    "ask an agent": lambda: socket.socket(socket.AF_UNIX),
    "send datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "lift a limit": lambda: resource.prlimit(0, resource.RLIMIT_NOFILE, (32, 32)),
    "find a variable": lambda: os.environ["HOME"],
}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
        done.append(name)
    except (OSError, RuntimeError, KeyError):
        pass
os.write(1, json.dumps(done).encode())
"""

_ALLOWED_ATTEMPTS = {
    *("read what is needed", "read below what is needed", "look into what is needed", "import", "connect", "answer"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a needed file, a needed folder and a secret file."""
    for name in ("library.so", "candidate/file", "secret"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was")
    return tmp_path


def test_a_sandboxed_process_can_do_only_what_is_allowed(home: Path) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ours, theirs = socket.socketpair()
    with sockets[0], sockets[1], ours, theirs:
        numbers = [*(str(listener.getsockname()[1]) for listener in sockets), str(theirs.fileno())]
        command = [sys.executable, "-c", _ATTEMPTS, str(home), *numbers]
        completed = subprocess.run(command, capture_output=True, timeout=120, check=True, pass_fds=[theirs.fileno()])
    assert set(json.loads(completed.stdout)) == _ALLOWED_ATTEMPTS
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == [
        "candidate",
        "candidate/file",
        "library.so",
        "secret",
    ]
    assert {path.read_text() for path in home.rglob("*") if path.is_file()} == {"as it was"}


# -- a hostile server --------------------------------------------------------------------------------------------------


class Hostile:
    """A server that makes TVM's client call a global function, by TVM's protocol (src/runtime/rpc/rpc_endpoint.cc).

    reply: TVM's code of the client's answer to the call, or -1."""

    _INIT, _CALL, _RETURN, _GET = 2, 3, 4, 9
    _VERSION = b"0.8.0"

    def __init__(self, function: str, *arguments: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._function, self._arguments = function, arguments
        self.port: int = self._listening.getsockname()[1]
        self.reply = -1
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Wait until the server has ended."""
        self._thread.join(60)
        self._listening.close()

    @staticmethod
    def text(words: str) -> bytes:
        """Encode a string argument as TVM sends it: type and value."""
        return struct.pack("<iQ", 8, len(words)) + words.encode()

    @staticmethod
    def flag(value: bool) -> bytes:
        """Encode a bool argument as TVM sends it: type and value."""
        return struct.pack("<iq", 2, value)

    def _serve(self) -> None:
        self._listening.settimeout(60)
        with contextlib.suppress(OSError), self._listening.accept()[0] as connection:
            connection.settimeout(60)
            magic, length = struct.unpack("<ii", self._bytes(connection, 8))
            self._bytes(connection, length)
            connection.sendall(struct.pack("<ii", magic, 7) + b"server:")
            self._answer(connection)  # the client asks for a session here; instead, a session is created in the client
            self._ask(connection, self._INIT, struct.pack("<Q", len(self._VERSION)) + self._VERSION)
            handle = self._ask(connection, self._GET, b"", self.text(self._function))
            self.reply = struct.unpack("<i", self._ask(connection, self._CALL, handle[-8:], *self._arguments)[:4])[0]

    def _ask(self, connection: socket.socket, code: int, head: bytes, *arguments: bytes) -> bytes:
        body = struct.pack("<i", code) + head + struct.pack("<i", len(arguments)) + b"".join(arguments)
        connection.sendall(struct.pack("<Q", len(body)) + body)
        return self._answer(connection)

    def _answer(self, connection: socket.socket) -> bytes:
        return self._bytes(connection, struct.unpack("<Q", self._bytes(connection, 8))[0])

    @staticmethod
    def _bytes(connection: socket.socket, count: int) -> bytes:
        received = b""
        while len(received) < count:
            chunk = connection.recv(count - len(received))
            if not chunk:
                raise ConnectionError("the client has gone")
            received += chunk
        return received


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    """A server that makes the client create two files, by the constructor of TVM's JSON database."""
    files = [Hostile.text(str(tmp_path / name)) for name in ("one.json", "two.json")]
    name = "s_tir.meta_schedule.DatabaseJSONDatabase"
    opened = Hostile(name, *files, Hostile.flag(True), Hostile.text("structural"))
    yield opened
    opened.close()


def test_a_hostile_server_can_create_files_through_a_plain_client(hostile: Hostile, tmp_path: Path) -> None:
    """Without the sandbox, the client creates the files. The next test relies on that."""
    code = f"from felixlike import _tvm; _tvm.rpc.connect('127.0.0.1', {hostile.port})"
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    hostile.close()
    assert hostile.reply == Hostile._RETURN
    assert {path.name for path in tmp_path.iterdir()} == {"one.json", "two.json"}


def test_a_hostile_server_cannot_create_files_through_a_session(hostile: Hostile, tmp_path: Path) -> None:
    processes = Processes(threads=1)
    try:
        request = {
            "server": ["localhost", hostile.port, ""],
            "seconds": 20.0,
            "assistant": str(processes.directory / "assistant.so"),
            "library": None,
            "target": "llvm",
            "memory": 2**30,
            "run": None,
            "survey": True,
        }
        trial = processes.begin(0, request)
        answer = trial.wait(60)
        processes.end(trial)
    finally:
        processes.close()
    hostile.close()
    assert answer["lost"] == "before"
    assert not list(tmp_path.iterdir())


# -- parts -------------------------------------------------------------------------------------------------------------


def test_answers_are_bounded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages.send(theirs, {"message": "x" * 1000})
        with pytest.raises(ValueError, match=r"\b1015\b.*\b1000\b"):
            messages.receive(ours, most=1000)


def test_fork_servers_get_no_secret_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "SSH_AUTH_SOCK", "OPENAI_API_KEY", "my_key")
    others = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "KEYBOARD", "TVM_HOME", "MONKEY")
    for name in (*secrets, *others):
        monkeypatch.setenv(name, os.environ.get(name, "x"))
    environment = ForkServer(tmp_path, threads=1)._environment()
    assert not environment.keys() & set(secrets)
    assert environment.keys() >= set(others)


_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", _HEADERS)
def test_system_call_numbers_match_the_kernel_headers(machine: str) -> None:
    if not _HEADERS[machine].exists():
        pytest.skip(f"{_HEADERS[machine]} is not installed")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", _HEADERS[machine].read_text(), re.MULTILINE)
    numbers = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in lines}
    column, _ = seccomp_filter._ARCHITECTURES[machine]
    known = {name: both[column] for name, both in seccomp_filter._CALLS.items() if both[column] is not None}
    assert known == {name: numbers.get(name) for name in known}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filters_are_valid_for_every_architecture(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    code = seccomp_filter.program()
    assert code is not None
    steps = [struct.unpack("<HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]
    assert len(steps) < 4096  # BPF_MAXINSNS
    for index, (kind, if_true, if_false, _) in enumerate(steps):  # jumps stay inside the program
        assert kind == seccomp_filter._RETURN or index + 1 + max(if_true, if_false) < len(steps)


def test_missing_sandbox_features_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(servers._sessions())
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sandbox, "_landlock_version", lambda: 0)
    (problem,) = servers._sessions()
    assert not problem.fatal
    for words in ("Landlock: ", "Landlock 4 ", "seccomp: "):
        assert words in problem.problem


def test_older_kernels_use_the_features_they_have(home: Path) -> None:
    """Version 1 of Landlock supports neither network rules nor scopes."""
    code = f"""
import os
from pathlib import Path
from felixlike.measure.child import sandbox
sandbox._landlock_version = lambda: 1
sandbox._has_seccomp = lambda: False
sandbox.enter([Path({str(home)!r}) / "library.so"], 1, keep=100)
try:
    open({str(home / "secret")!r})
except PermissionError:
    os.write(1, b"refused")
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert completed.stdout == b"refused"
