"""The numbers by which servers are waited for: time limits, and how many losses are accepted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long servers are waited for, and how often they may fail. All values are chosen by hand.

    Attributes:
        losses: Sessions lost while a candidate runs after which it counts as crashed.
        fruitless: Largest number of consecutive sessions that may fail before a candidate runs.
        built_ahead: Largest number of built candidates that wait for a server, per worker.
        retry_seconds: Longest wait before the tracker is tried again and time limits are checked, s.
        grace_seconds: Time after the server's own limit after which this machine ends a session, s.
        others_seconds: How long to wait for further servers after the first, s.
        tracker_seconds: Timeout of the tracker's socket, s.
    """

    losses: int = 2
    fruitless: int = 10
    built_ahead: int = 2
    retry_seconds: float = 1.0
    grace_seconds: float = 5.0
    others_seconds: float = 2.0
    tracker_seconds: float = 5.0


SERVER_LIMITS = ServerLimits()
