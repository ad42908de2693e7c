"""`Tracker` raises errors for wrong addresses and for servers that are not trackers."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from felixlike import _tvm
from felixlike.errors import InvalidOption, TrackerFailed, WorkerFailed
from felixlike.hardware import resolve_target
from felixlike.measure import RpcPool
from felixlike.measure.rpc.tracker import Tracker


@pytest.mark.parametrize("where", ["", "host", "host:", ":9190", "host:port", "host:0", "host:65536", "host:-1"])
def test_an_address_is_host_and_port(where: str) -> None:
    with pytest.raises(InvalidOption, match="HOST:PORT") as caught:
        Tracker(where)
    assert repr(where) in caught.value.what
    assert caught.value.where == "tracker"


def test_addresses_are_parsed() -> None:
    assert Tracker("10.0.0.1:9190").address == ("10.0.0.1", 9190)
    assert Tracker("[::1]:9190").address == ("::1", 9190)


def test_a_missing_tracker_is_an_error() -> None:
    with socket.socket() as unused_socket:  # bound, so that the port is not used by others, but not listening
        unused_socket.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{unused_socket.getsockname()[1]}"
        with pytest.raises(TrackerFailed, match=os.strerror(errno.ECONNREFUSED)) as raised:
            Tracker(where).servers()
        with pytest.raises(WorkerFailed, match=f"tracker {where}: .*{os.strerror(errno.ECONNREFUSED)}"):
            RpcPool(resolve_target("cpu"), tracker=where, key="cpu")
    assert isinstance(raised.value, ConnectionError)
    assert raised.value.where == f"tracker {where}"
    assert "tvm.exec.rpc_tracker" in raised.value.remedy


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_server_that_is_not_a_tracker_is_an_error(words: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TrackerFailed, match="tracker of this version of TVM"):
            Tracker(f"127.0.0.1:{listening.getsockname()[1]}").servers()
        thread.join()


@contextmanager
def _tracker(value: Any) -> Iterator[Tracker]:
    """Run a tracker that answers one request with this value."""
    base = _tvm.rpc.base
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(base.recvall(connection, 4))
                base.recvjson(connection)
                base.sendjson(connection, [base.TrackerCode.SUCCESS, value])

        thread = threading.Thread(target=answer)
        thread.start()
        yield Tracker(f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    "summary",
    [
        None,
        [],
        {"queue_info": {}},
        {"queue_info": [], "server_info": []},
        {"queue_info": {"cpu": {"free": "many"}}, "server_info": []},
        {"queue_info": {}, "server_info": [{"key": "server:cpu", "addr": "nowhere"}]},
        {"queue_info": {}, "server_info": [{"key": "server:cpu", "addr": ["127.0.0.1", 2**16]}]},
    ],
)
def test_a_malformed_summary_is_an_error(summary: Any) -> None:
    with _tracker(summary) as tracker, pytest.raises(TrackerFailed, match="the tracker's reply is malformed"):
        tracker.servers()


@pytest.mark.parametrize("grant", [None, [], ["127.0.0.1", "x", "key"], ["127.0.0.1", 2**16, "key"], ["", 1, 2, 3]])
def test_a_malformed_grant_is_an_error(grant: Any) -> None:
    malformed = pytest.raises(TrackerFailed, match="the tracker's reply is malformed")
    with _tracker(grant) as tracker, tracker.request("cpu") as request, malformed:
        request.grant()


def test_no_more_servers_are_free_than_there_are() -> None:
    summary = {
        "queue_info": {"cpu": {"free": 10**9}},
        "server_info": [{"key": "server:cpu", "addr": ["127.0.0.1", 9090]}],
    }
    with _tracker(summary) as tracker:
        assert tracker.servers()["cpu"].free == 1


def test_patience_is_positive() -> None:
    with pytest.raises(InvalidOption, match=r"\bpatience\b.* 0\."):
        RpcPool(resolve_target("cpu"), tracker="127.0.0.1:1", key="cpu", patience=0)
