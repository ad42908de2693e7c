"""What is asked of TVM's tracker: which servers it has, and one of them for a session.

The protocol is TVM's (tvm/rpc/tracker.py): a magic number both ways, then JSON after its length. TVM's own client
waits a minute for a tracker that is not there, and blocks while all servers are busy; here a request is a socket that
can be waited for among others.
"""

import contextlib
import select
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.wording import shown
from felixlike.errors import InvalidOption, TrackerFailed

Address = tuple[str, int]
"""Host and port."""

_SECONDS = 5.0
_START = (
    "start one with `python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190`, or check its address and the firewall"
)


@dataclass(frozen=True, slots=True)
class Grant:
    """A server to which this client may connect now.  password: what the server expects to be told."""

    address: Address
    password: str


@dataclass(frozen=True, slots=True)
class Servers:
    """Those under one key.  free: how many of them wait for a session."""

    addresses: tuple[Address, ...]
    free: int


class Tracker:
    """A tracker at HOST:PORT.  Nothing is connected until something is asked."""

    def __init__(self, where: Any) -> None:
        """where: HOST:PORT.  Raises InvalidOption if it is not."""
        host, colon, port = where.rpartition(":") if isinstance(where, str) else ("", "", "")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise InvalidOption(
                f"{shown(where)} is no address", where="tracker", remedy="give HOST:PORT, as 10.0.0.1:9190"
            )
        self.where = where
        self.address = (host.strip("[]"), int(port))

    def servers(self) -> dict[str, Servers]:
        """The servers under each key.  Raises TrackerFailed."""
        with Request(self, [_tvm.rpc.base.TrackerCode.SUMMARY]) as request:
            summary = request.reply()
        free = {key: int(queue["free"]) for key, queue in summary["queue_info"].items()}
        found: dict[str, list[Address]] = {}
        for server in summary["server_info"]:
            host, port = server["addr"]
            found.setdefault(str(server["key"]).removeprefix("server:"), []).append((str(host), int(port)))
        return {key: Servers(tuple(sorted(found[key])), free.get(key, 0)) for key in sorted(found)}

    def request(self, key: str) -> "Request":
        """Queue for a server under this key.  Raises TrackerFailed."""
        return Request(self, [_tvm.rpc.base.TrackerCode.REQUEST, key, "", 1])


def check_servers(where: Any, key: Any) -> None:
    """Raise InvalidOption if a tracker's address is no HOST:PORT, or a key no text; nothing is connected."""
    Tracker(where)
    option_checks.text(key, "key", remedy="give the key that the servers were started with")


class Request:
    """One question to a tracker and a connection of its own; closing it takes the question back."""

    def __init__(self, tracker: Tracker, question: list[Any]) -> None:
        self._where = f"tracker {tracker.where}"
        self._base = _tvm.rpc.base
        try:
            self._socket = socket.create_connection(tracker.address, timeout=_SECONDS)
        except OSError as error:
            raise TrackerFailed(
                f"it cannot be reached: {error.strerror or error}", where=self._where, remedy=_START
            ) from None
        magic = struct.pack("<i", self._base.RPC_TRACKER_MAGIC)
        try:
            self._socket.sendall(magic)
            if self._base.recvall(self._socket, len(magic)) != magic:
                raise ValueError("its first words are other ones")
            self._base.sendjson(self._socket, question)
        except (OSError, ValueError) as error:
            self.close()
            raise TrackerFailed(
                f"something answers there that is no tracker of this version of TVM ({error})",
                where=self._where,
                remedy=_START,
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """To be waited for: it can be read as soon as there is a reply."""
        return self._socket.fileno()

    def reply(self) -> Any:
        """What the tracker says, waiting for it.  Raises TrackerFailed."""
        try:
            code, value = self._base.recvjson(self._socket)
            if code != self._base.TrackerCode.SUCCESS:
                raise ValueError(f"code {code}")
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise TrackerFailed(f"it gave no answer ({error})", where=self._where, remedy=_START) from None
        return value

    def grant(self) -> Grant:
        """The server that was given.  Raises TrackerFailed."""
        host, port, password = self.reply()
        return Grant((str(host), int(port)), str(password))

    def wait(self, seconds: float) -> Grant | None:
        """The same, None if there is none in time."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return self.grant() if poll.poll(seconds * 1000) else None

    def close(self) -> None:
        """May be called again."""
        with contextlib.suppress(OSError):
            self._socket.close()
