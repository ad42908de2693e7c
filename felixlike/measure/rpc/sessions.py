"""Start sessions with servers, each in a process of its own, so that a server that dies or hangs ends only its session.

The input is a server that the tracker has granted and a library. The output is the process (`rpc_session_process`) as a
Trial.
"""

from pathlib import Path

from felixlike.measure.local.builder import Builder
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.server_limits import SERVER_LIMITS
from felixlike.measure.rpc.tracker import Grant


class Sessions:
    """Sessions of one pool."""

    def __init__(self, builder: Builder, exports: Exports) -> None:
        self._builder = builder
        self._exports = exports

    @property
    def seconds(self) -> float:
        """Time limit of a session, s."""
        return self._builder.limits.run_seconds + SERVER_LIMITS.grace_seconds

    def begin(
        self, grant: Grant, library: Path | None, memory: int, reference_data: Message | None, *, survey: bool = False
    ) -> Trial:
        """Start a process that connects to a server and runs a library there.

        Args:
            grant: The server.
            library: Path of the library; None to identify the machine only.
            memory: Size of the library's buffers, bytes.
            reference_data: The run request; None without a run.
            survey: Return the server's version of TVM, too.
        """
        request = {
            "server": [*grant.address, grant.password],
            "seconds": self._builder.limits.run_seconds,
            "assistant": str(self._exports.assistant),
            "library": None if library is None else str(library),
            "target": self._builder.target,
            "memory": self._builder.limits.memory_bytes + memory,
            "run": reference_data,
            "survey": survey,
        }
        return self._builder.processes.begin(0, request)
