"""Sessions with servers, each led by a process of its own on this machine, so that a server that dies or hangs costs no
more than that.

In: a server that the tracker has granted, and a library. Out: the process (`remote_process`), as a Trial.
"""

from pathlib import Path

from felixlike.measure.local.builder import Builder
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.tracker import Grant

_GRACE_SECONDS = 5.0
"""A server ends a session that takes too long; if it does not, it is given up so much later."""


class Sessions:
    """Of one pool."""

    def __init__(self, builder: Builder, exports: Exports) -> None:
        self._builder = builder
        self._exports = exports

    @property
    def seconds(self) -> float:
        """When a session is overdue."""
        return self._builder.limits.run_seconds + _GRACE_SECONDS

    def begin(
        self, grant: Grant, library: Path | None, memory: int, reference_data: Message | None, *, survey: bool = False
    ) -> Trial:
        """A process that connects to a server and runs a library there.

        library: None to look at the machine only.  memory: bytes for its buffers.  reference_data: the run request.
        survey: look at the version of TVM, too."""
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
