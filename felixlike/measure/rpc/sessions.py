"""Sessions with servers, each led by a process of its own on this machine, so that a server that dies or hangs costs no
more than that.

In: a server that the tracker has granted, and a library. Out: the process (`remote_process`), as a Trial.
"""

from pathlib import Path

from felixlike.measure.local.builder import Workshop
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.tracker import Grant

_GRACE_SECONDS = 5.0
"""A server ends a session that takes too long; if it does not, it is given up so much later."""


class Sessions:
    """Of one pool."""

    def __init__(self, workshop: Workshop, exports: Exports) -> None:
        self._workshop = workshop
        self._exports = exports

    @property
    def seconds(self) -> float:
        """When a session is overdue."""
        return self._workshop.limits.run_seconds + _GRACE_SECONDS

    def begin(
        self, grant: Grant, library: Path | None, memory: int, examination: Message | None, *, survey: bool = False
    ) -> Trial:
        """A process that connects to a server and runs a library there.

        library: None to look at the machine only.  memory: bytes for its buffers.  examination: the run request.
        survey: look at the version of TVM, too."""
        request = {
            "server": [*grant.address, grant.password],
            "seconds": self._workshop.limits.run_seconds,
            "assistant": str(self._exports.assistant),
            "library": None if library is None else str(library),
            "target": self._workshop.target,
            "memory": self._workshop.limits.memory_bytes + memory,
            "run": examination,
            "survey": survey,
        }
        return self._workshop.processes.begin(0, request)
