"""Manage a pool's processes, which are forked from a server that is replaced when it dies.

The input is the first request of each process, the output a Trial for each. The pool's files lie in a folder that is
removed with the processes.
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
"""Largest number of server deaths without a result in between; chosen by hand."""


class Processes:
    """Processes of a pool.

    Args:
        threads: Number of threads of a candidate's call.

    Attributes:
        directory: Folder for the pool's files.
        under_way: Trials that have not been ended.
        server: Client of the fork server.
    """

    def __init__(self, *, threads: int) -> None:
        self.under_way: set[Trial] = set()
        self._deaths = 0
        self._recorded_generation = 0  # of the latest server whose death was counted
        self.directory = scratch.folder("measure")
        self.server = ForkServer(self.directory, threads=threads)
        self._finalizer = weakref.finalize(self, _dispose, self.server, self.directory, os.getpid())
        self.server.start()

    @property
    def closed(self) -> bool:
        """Whether the pool is closed, so no process can be started."""
        return not self._finalizer.alive

    def close(self) -> None:
        """End all processes and their server, and remove the files. Calling it again has no effect."""
        self._finalizer()

    def begin(self, index: int, request: Message) -> Trial:
        """Start a process that serves a request, from a new server if the old one is gone.

        `index` is that of its Trial. Raises WorkerFailed if no server can be started."""
        while True:
            try:
                trial = Trial(self.server, index, request)
            except ServerDied:
                self.record_death(self.server.generation)
                continue
            self.under_way.add(trial)
            return trial

    def end(self, trial: Trial, *, wait: bool = True) -> None:
        """End a process (see `Trial.close`). Calling it again has no effect."""
        trial.close(wait=wait)
        self.under_way.discard(trial)

    def end_all(self) -> None:
        """End all running processes; new ones can be started afterwards."""
        for trial in tuple(self.under_way):
            self.end(trial)

    def record_death(self, generation: int) -> None:
        """Count a server's death, once for all trials lost with it; raise WorkerFailed after too many deaths."""
        if generation <= self._recorded_generation:
            return
        self._recorded_generation = generation
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise WorkerFailed(
                f"the measuring process died {self._deaths} times without a result in between",
                where="MeasurePool",
                remedy="check the limits on this user's processes and the machine's memory",
            )

    def reset_deaths(self) -> None:
        """Reset the number of deaths, since there is a result."""
        self._deaths = 0


def _dispose(server: ForkServer, directory: Path, owner: int) -> None:
    """End a pool's server and remove its files, unless this is a forked copy of the pool's process."""
    if os.getpid() == owner:
        server.close()
        scratch.discard(directory)
