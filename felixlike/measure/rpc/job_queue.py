"""Keep an RpcPool's jobs: candidates that are being built, wait for a server or run on one."""

import selectors
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from felixlike.measure.local.build_limit import BuildLimit
from felixlike.measure.local.trial import Trial
from felixlike.measure.rpc.server_pool import as_text
from felixlike.measure.rpc.tracker import Address, Request


@dataclass(eq=False, slots=True)
class Job:
    """Candidate in the queue.

    Attributes:
        index: Index in the caller's list.
        library: Path of the candidate's library.
        build_seconds: Wall time of the build, s.
        code: Digest of the generated code; empty before the candidate is built.
        losses: Number of sessions that were lost while it ran.
    """

    index: int
    library: Path
    build_seconds: float = 0.0
    code: str = ""
    losses: int = 0


@dataclass(slots=True)
class JobQueue:
    """Jobs by state.

    Attributes:
        building: Processes on this machine that build, with their jobs.
        ready: Jobs that are built, in the order in which they will run.
        asked: Requests to the tracker, up to one for each ready job.
        running: Processes on this machine that control a session with a server, with their jobs and the server.
        idle: Time for which there was work and no server, s.
        fruitless: Number of consecutive sessions that failed before their candidate ran.
        complaint: Last failure.
        build_limit: Time limit of builds.
    """

    build_limit: BuildLimit
    building: dict[Trial, Job] = field(default_factory=dict)
    ready: deque[Job] = field(default_factory=deque)
    asked: list[Request] = field(default_factory=list)
    running: dict[Trial, tuple[Job, Address]] = field(default_factory=dict)
    idle: float = 0.0
    fruitless: int = 0
    complaint: str = ""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    @property
    def is_over(self) -> bool:
        """Whether no job is building, ready or running."""
        return not (self.building or self.ready or self.running)

    def build(self, trial: Trial, job: Job) -> None:
        """Add a process that has begun to build the job."""
        self.building[trial] = job
        self._selector.register(trial.channel, selectors.EVENT_READ, trial)

    def ask(self, request: Request) -> None:
        """Add a request for a server that was sent to the tracker."""
        self.asked.append(request)
        self._selector.register(request, selectors.EVENT_READ, request)

    def run(self, trial: Trial, job: Job, address: Address) -> None:
        """Add a process that has begun to run the job on a server."""
        self.running[trial] = job, address
        self._selector.register(trial.channel, selectors.EVENT_READ, trial)

    def finish(self, source: Trial | Request) -> Any:
        """Remove a process or request; return the Job of a build, (Job, address) of a run, None of a request."""
        self._selector.unregister(source if isinstance(source, Request) else source.channel)
        if isinstance(source, Request):
            return self.asked.remove(source)
        return self.building.pop(source) if source in self.building else self.running.pop(source)

    def complain(self, address: Address, message: str) -> None:
        """Record a server's failure as the last one."""
        self.complaint = f"{as_text(address)}: {message}"

    def wait(self, seconds: float) -> set[Trial | Request]:
        """Wait up to `seconds` and return the processes and requests that can be read."""
        return {key.data for key, _ in self._selector.select(max(0.0, seconds))}

    def close(self) -> None:
        """Close all requests. The processes are ended by their owner."""
        for request in self.asked:
            request.close()
        self._selector.close()
