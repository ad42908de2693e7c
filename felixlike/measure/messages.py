"""Exchange messages between the pool and a candidate's process over a stream socket.

A message is a JSON object after its length (8 bytes, little-endian). JSON is used instead of pickle so that data from a
candidate's process cannot execute code in the pool's process.
"""

import json
import socket
import struct
from typing import Any

from felixlike._util.wording import kind_of

_LENGTH = struct.Struct("<Q")

Message = dict[str, Any]


def send(channel: socket.socket, message: Message) -> None:
    """Send one message; raise OSError if the peer is gone or does not read it within the socket's timeout."""
    body = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket, *, most: int | None = None) -> Message:
    """Receive the next message.

    Args:
        channel: The socket to read from.
        most: Largest length of the message, bytes; None for no limit.

    Raises:
        ConnectionError: The stream has ended.
        ValueError: The message is not a JSON object, or it is too long.
    """
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    if most is not None and length > most:
        raise ValueError(f"the message has {length} bytes, the limit is {most}")
    try:
        message = json.loads(_exactly(channel, length))
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {kind_of(message)}")
    return message


def _exactly(channel: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes; raise ConnectionError if the stream ends before."""
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 2**20))
        if not part:
            raise ConnectionError("the other process closed the connection")
        parts += part
    return bytes(parts)
