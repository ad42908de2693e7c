"""List the servers under one key of a tracker, and exclude unsuitable ones."""

import warnings
from collections.abc import Mapping
from typing import NoReturn

from felixlike.errors import TrackerFailed, WorkerFailed, WrongDevice
from felixlike.measure.rpc.tracker import Address, Request, Servers, Tracker, check_servers


class ServerPool:
    """Servers under one key of a tracker.

    Args:
        tracker: HOST:PORT.
        key: Key of the servers.

    Raises:
        InvalidOption: The tracker's address is not HOST:PORT.
        TrackerFailed: The tracker cannot be reached or has no server under the key.
    """

    def __init__(self, tracker: str, key: str) -> None:
        check_servers(tracker, key)
        self._tracker, self._key = Tracker(tracker), key
        self._unfit: dict[Address, str] = {}
        self.registered()

    def __str__(self) -> str:
        return f"tracker {self._tracker.where}, key {self._key!r}"

    def registered(self) -> Servers:
        """Return the registered servers, including refused ones; raise TrackerFailed if there are none."""
        servers_by_key = self._tracker.servers()
        if self._key not in servers_by_key:
            where, keys = self._tracker.where, ", ".join(servers_by_key) or "none"
            raise TrackerFailed(
                f"no server is registered under the key {self._key!r} (registered keys: {keys})",
                where=f"tracker {where}",
                remedy=f"start one: `python -m tvm.exec.rpc_server --tracker {where} --key {self._key}`",
            )
        return servers_by_key[self._key]

    def request(self) -> Request:
        """Request a server from the tracker; raise TrackerFailed if the tracker does not answer."""
        return self._tracker.request(self._key)

    def is_refused(self, address: Address) -> bool:
        """Return whether `refuse` has excluded the server."""
        return address in self._unfit

    def refuse(self, unfit: Mapping[Address, str]) -> None:
        """Exclude servers, given with their reasons; warn of each, or raise WrongDevice if no server is left."""
        new = {address: reason for address, reason in unfit.items() if address not in self._unfit}
        self._unfit.update(new)
        if not set(self.registered().addresses) - set(self._unfit):
            raise WrongDevice(
                "; ".join(f"{as_text(address)}: {reason}" for address, reason in sorted(self._unfit.items())),
                where=f"all servers of {self}",
                remedy="tune on a machine like these servers, or start servers on machines like this one",
            )
        for address, reason in new.items():
            warnings.warn(f"server {as_text(address)} is not used: {reason}", RuntimeWarning, stacklevel=2)

    def give_up(self, what: str, complaint: str) -> NoReturn:
        """Raise WorkerFailed, or TrackerFailed if the tracker has no server; `complaint` is the last failure or ""."""
        self.registered()
        raise WorkerFailed(
            what + (f"; last failure: {complaint}" if complaint else ""),
            where=str(self),
            remedy="run `felixlike doctor --tracker HOST:PORT`, and restart the servers that do not answer",
        )


def as_text(address: Address) -> str:
    """Return HOST:PORT."""
    return f"{address[0]}:{address[1]}"
