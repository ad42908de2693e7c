"""Answers of candidates' processes: malformed ones count as crashes, since a process may send anything."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest

from felixlike.measure import Status
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
