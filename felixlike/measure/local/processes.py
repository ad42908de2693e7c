"""The processes of a pool: forked from a server that is replaced when it dies, and ended all together.

In: the first request of each. Out: a Trial each. The pool's files lie in a directory that goes when they do.
"""

import os
import weakref
from pathlib import Path

from felixlike._util import scratch
from felixlike.errors import WorkerFailed
from felixlike.measure.local.fork_client import ForkServer, ServerDied
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message

_MOST_DEATHS = 5


class Processes:
    """threads: of a candidate's call.  directory: for files.  under_way: those that have not been ended."""

    def __init__(self, *, threads: int) -> None:
        self.under_way: set[Trial] = set()
        self._deaths = 0
        self._mourned = 0  # the generation of the latest server whose death was counted
        self.directory = scratch.folder("measure")
        self.server = ForkServer(self.directory, threads=threads)
        self._finalizer = weakref.finalize(self, _dispose, self.server, self.directory, os.getpid())
        self.server.start()

    @property
    def closed(self) -> bool:
        """Whether there can be no more of them."""
        return not self._finalizer.alive

    def close(self) -> None:
        """End them all and their server, and remove the files.  May be called again."""
        self._finalizer()

    def begin(self, index: int, request: Message) -> Trial:
        """One that serves this request, from a new server if the old one is gone.  index: of its Trial.

        Raises WorkerFailed."""
        while True:
            try:
                trial = Trial(self.server, index, request)
            except ServerDied:
                self.record_death(self.server.generation)
                continue
            self.under_way.add(trial)
            return trial

    def end(self, trial: Trial) -> None:
        """End one.  May be called again."""
        trial.close()
        self.under_way.discard(trial)

    def end_all(self) -> None:
        """End those under way; there can be more."""
        for trial in tuple(self.under_way):
            self.end(trial)

    def record_death(self, generation: int) -> None:
        """Count a server's death, once, however many trials are lost with it; raise WorkerFailed if that is all that
        happens."""
        if generation <= self._mourned:
            return
        self._mourned = generation
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise WorkerFailed(
                f"the measuring process died {self._deaths} times without a result in between",
                where="MeasurePool",
                remedy="see what ends it: a limit on this user's processes, or the machine's memory",
            )

    def reset_deaths(self) -> None:
        """There is a result: the deaths so far are forgotten."""
        self._deaths = 0


def _dispose(server: ForkServer, directory: Path, owner: int) -> None:
    """End what a pool has started, unless this is a forked copy of its process."""
    if os.getpid() == owner:
        server.close()
        scratch.discard(directory)
