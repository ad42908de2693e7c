"""Messages between the pool and a candidate's process: JSON objects after their length, over a stream socket.

JSON rather than pickle: nothing that arrives from a candidate's process can run anything here.
"""

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")

Message = dict[str, Any]


def send(channel: socket.socket, message: Message) -> None:
    """Send one message.  Raises OSError if the other end is gone or does not take it within the socket's timeout."""
    body = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket, *, most: int | None = None) -> Message:
    """The next message.  most: bytes it may have, None for any number.

    Raises ConnectionError at the end of the stream, ValueError if it is no JSON object or too long."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    if most is not None and length > most:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(_exactly(channel, length))
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def _exactly(channel: socket.socket, count: int) -> bytes:
    """The next `count` bytes."""
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 2**20))
        if not part:
            raise ConnectionError("the other process closed the connection")
        parts += part
    return bytes(parts)
