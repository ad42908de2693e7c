"""Communicate with TVM's tracker: list its servers and request one for a session.

The protocol is TVM's (tvm/rpc/tracker.py): a magic number in both directions, then JSON after its length. TVM's own
client waits a minute for a missing tracker, and blocks while all servers are busy. Here a request is a socket, so a
selector can wait for it among others.
"""

import contextlib
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.wording import shown
from felixlike.errors import InvalidOption, TrackerFailed
from felixlike.measure.rpc.server_limits import SERVER_LIMITS

_T = TypeVar("_T")

_MOST_PORT = 2**16 - 1

Address = tuple[str, int]
"""Host and port."""

_START = (
    "start one with `python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190`, or check its address and the firewall"
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to connect to a server now; the server expects `password`."""

    address: Address
    password: str


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers under one key; `free` is the number of them that wait for a session."""

    addresses: tuple[Address, ...]
    free: int


class Tracker:
    """Client of a tracker. It connects only for a request."""

    def __init__(self, where: Any) -> None:
        """Parse `where`, HOST:PORT; raise InvalidOption if it is malformed."""
        host, colon, port = where.rpartition(":") if isinstance(where, str) else ("", "", "")
        if not colon or not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= _MOST_PORT:
            raise InvalidOption(
                f"expected HOST:PORT, got {shown(where)}", where="tracker", remedy="give an address like 10.0.0.1:9190"
            )
        self.where = where
        self.address = (host.strip("[]"), int(port))

    def servers(self) -> dict[str, Servers]:
        """Return the servers under each key; raise TrackerFailed if the tracker does not answer as it should."""
        with Request(self, [_tvm.rpc.base.TrackerCode.SUMMARY]) as request:
            return request.reply(_servers)

    def request(self, key: str) -> "Request":
        """Request a server under this key; raise TrackerFailed if the tracker does not answer."""
        return Request(self, [_tvm.rpc.base.TrackerCode.REQUEST, key, "", 1])


def _servers(summary: Any) -> dict[str, Servers]:
    """Return the servers of a tracker's summary. Raise TypeError and the like for a malformed one."""
    free = {key: int(queue["free"]) for key, queue in summary["queue_info"].items()}
    addresses: dict[str, list[Address]] = {}
    for server in summary["server_info"]:
        addresses.setdefault(str(server["key"]).removeprefix("server:"), []).append(_address(*server["addr"]))
    return {
        key: Servers(tuple(sorted(known)), min(free.get(key, 0), len(known)))
        for key, known in sorted(addresses.items())
    }


def _address(host: Any, port: Any) -> Address:
    """Return a server's address. Raise ValueError for an impossible one."""
    if not 0 < int(port) <= _MOST_PORT:
        raise ValueError(f"port {port}")
    return str(host), int(port)


def _grant(host: Any, port: Any, password: Any) -> Grant:
    """Return the grant of a tracker's reply. Raise ValueError for an impossible address."""
    return Grant(_address(host, port), str(password))


def check_servers(where: Any, key: Any) -> None:
    """Raise InvalidOption unless the address is HOST:PORT and the key is a text; this does not connect."""
    Tracker(where)
    option_checks.text(key, "key", remedy="pass the key that the servers were started with")


class Request:
    """Request to a tracker over a connection of its own; closing it cancels the request."""

    def __init__(self, tracker: Tracker, question: list[Any]) -> None:
        self._where = f"tracker {tracker.where}"
        self._base = _tvm.rpc.base
        try:
            self._socket = socket.create_connection(tracker.address, timeout=SERVER_LIMITS.tracker_seconds)
        except OSError as error:
            raise TrackerFailed(
                f"it cannot be reached: {error.strerror or error}", where=self._where, remedy=_START
            ) from None
        magic = struct.pack("<i", self._base.RPC_TRACKER_MAGIC)
        try:
            self._socket.sendall(magic)
            if self._base.recvall(self._socket, len(magic)) != magic:
                raise ValueError("wrong magic number")
            self._base.sendjson(self._socket, question)
        except (OSError, ValueError) as error:
            self.close()
            raise TrackerFailed(
                f"the address belongs to something other than a tracker of this version of TVM ({error})",
                where=self._where,
                remedy=_START,
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket's file descriptor, which becomes readable with the reply."""
        return self._socket.fileno()

    def reply(self, read: Callable[[Any], _T]) -> _T:
        """Wait for the tracker's reply and return what `read` makes of it; raise TrackerFailed if there is none.

        Also if `read` raises the errors of malformed data."""
        try:
            code, value = self._base.recvjson(self._socket)
            if code != self._base.TrackerCode.SUCCESS:
                raise ValueError(f"code {code}")
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise TrackerFailed(f"the tracker did not reply ({error})", where=self._where, remedy=_START) from None
        try:
            return read(value)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise TrackerFailed(
                f"the tracker's reply is malformed ({type(error).__name__}: {error})", where=self._where, remedy=_START
            ) from None

    def grant(self) -> Grant:
        """Wait for a server and return it; raise TrackerFailed if the reply is invalid."""
        return self.reply(lambda value: _grant(*value))

    def wait(self, seconds: float) -> Grant | None:
        """Wait up to `seconds` for a server; return None if none is granted."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return self.grant() if poll.poll(seconds * 1000) else None

    def close(self) -> None:
        """Close the connection. Calling it again has no effect."""
        with contextlib.suppress(OSError):
            self._socket.close()
