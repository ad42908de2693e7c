import socket
import struct
from collections.abc import Iterator
from math import inf
from threading import Thread

import pytest

from felixlike.measure.messages import receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    large = {"module": "x" * 3_000_000}  # far more than a socket holds
    sender = Thread(target=send, args=(pair[0], large))
    sender.start()
    assert receive(pair[1]) == large
    sender.join()
    send(pair[0], {"error": inf, "repeats": [1e-6, 2.5]})
    send(pair[0], {})
    assert receive(pair[1]) == {"error": inf, "repeats": [1e-6, 2.5]}
    assert receive(pair[1]) == {}


def test_the_end_of_the_stream_is_an_error(pair: Pair) -> None:
    pair[0].sendall(struct.pack("<Q", 100) + b"{")
    pair[0].close()
    with pytest.raises(ConnectionError, match="closed the connection"):
        receive(pair[1])


def test_only_json_objects_are_messages(pair: Pair) -> None:
    pair[0].sendall(struct.pack("<Q", 2) + b"[]")
    with pytest.raises(ValueError, match=r"JSON object.* a list"):
        receive(pair[1])
