"""Answers of candidates' processes: malformed ones count as crashes, since a process may send anything."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, cast

import pytest

from felixlike._util import spent
from felixlike.measure import Status, messages
from felixlike.measure.local.fork_client import Ending
from felixlike.measure.local.trial import Trial


class _Server:
    """A fork server whose process has sent some bytes and ended."""

    generation = 1

    def __init__(self, body: bytes) -> None:
        self._body = body

    def fork(self) -> tuple[int, socket.socket]:
        mine, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(struct.pack("<Q", len(self._body)) + self._body)
        return 0, mine

    def alive(self, generation: int) -> bool:
        return generation == self.generation

    def end(self, process: int, *, kill: bool) -> Ending:
        return Ending(status=0, grown=0)


class _Waiting(_Server):
    """A fork server whose process answers when the test does. channel: the process's end."""

    def __init__(self) -> None:
        super().__init__(b"")
        self._mine, self.channel = socket.socketpair()

    def fork(self) -> tuple[int, socket.socket]:
        return 0, self._mine


def _answer(body: bytes) -> dict[str, Any]:
    server: Any = _Server(body)
    trial = Trial(server, 0, {"memory": 2**30})
    try:
        return trial.wait(10.0)
    finally:
        trial.close()


RIGHT = {"status": "ok", "elapsed": 0.5, "error": None, "repeats": [1e-6], "message": "", "kernels": []}


def test_an_answer_is_returned_with_its_status() -> None:
    assert _answer(json.dumps(RIGHT).encode()) == {**RIGHT, "status": Status.OK}


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "excellent"},
        {"status": ["ok"]},
        {"elapsed": float("nan")},
        {"elapsed": float("inf")},
        {"elapsed": 10**400},
        {"elapsed": None},
        {"timed": []},
        {"message": ["x"]},
        {"device": 1},
        {"code": None},
        {"error": "0"},
        {"repeats": 3},
        {"repeats": "123"},
        {"kernels": [{"name": "k"}]},
        {"kernels": [1]},
        {"kernels": 1},
    ],
    ids=str,
)
def test_a_malformed_answer_is_a_crash(wrong: dict[str, Any]) -> None:
    answer = _answer(json.dumps({**RIGHT, **wrong}).encode())
    assert answer["status"] is Status.CRASHED
    assert answer["message"] == "its process exited with code 0 and no answer"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_a_crash(body: bytes) -> None:
    assert _answer(body)["status"] is Status.CRASHED


@pytest.mark.parametrize("length", [0, 2**16], ids=["short", "long"])
def test_a_process_gets_the_next_request_before_its_answer_is_read(length: int) -> None:
    """A long request, which would fill the channel's buffer, is sent after the answer."""
    server = _Waiting()
    following = {"arguments": "x" * length}
    trial = Trial(cast("Any", server), 0, {"module": "m", "memory": 2**30})
    try:
        trial.send_next(following)
        assert messages.receive(server.channel)["module"] == "m"
        if not length:
            assert messages.receive(server.channel) == following
        assert trial.step == spent.BUILDING
        messages.send(server.channel, RIGHT)
        assert trial.wait(10.0)["status"] is Status.OK
        if length:
            assert messages.receive(server.channel) == following
        assert trial.step == spent.CHECKING
        messages.send(server.channel, {**RIGHT, "error": 0.5})
        assert trial.wait(10.0)["error"] == 0.5
    finally:
        trial.close()
        server.channel.close()


def test_a_failure_has_no_next_answer() -> None:
    server = _Waiting()
    trial = Trial(cast("Any", server), 0, {"module": "m", "memory": 2**30})
    try:
        trial.send_next({"arguments": []})
        messages.send(server.channel, {**RIGHT, "status": "build error"})
        assert trial.wait(10.0)["status"] is Status.BUILD_ERROR
        assert trial.step == spent.BUILDING
    finally:
        trial.close()
        server.channel.close()
