"""What an RpcPool has under way: candidates being built, waiting for a server, running on one."""

import selectors
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from felixlike.measure.local.trial import Trial
from felixlike.measure.rpc.server_pool import as_text
from felixlike.measure.rpc.tracker import Address, Request


@dataclass(eq=False, slots=True)
class Job:
    """A candidate on its way.

    index: its place in the caller's list.  library: where it is built to.  code: digest of it, once it is built.
    losses: servers that were lost while it ran."""

    index: int
    library: Path
    build_seconds: float = 0.0
    code: str = ""
    losses: int = 0


@dataclass(slots=True)
class JobQueue:
    """building, running: processes on this machine, with what they are for; running ones lead a session with a
    server.  ready: built, the next to run first.  asked: questions to the tracker, one for each that is ready.
    idle: seconds for which there was work and no server.  fruitless: sessions in a row that failed before their
    candidate was there.  complaint: what went wrong last."""

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
        """Whether nothing is under way."""
        return not (self.building or self.ready or self.running)

    def build(self, trial: Trial, job: Job) -> None:
        """A process has begun to build this."""
        self.building[trial] = job
        self._selector.register(trial.channel, selectors.EVENT_READ, trial)

    def ask(self, request: Request) -> None:
        """The tracker has been asked for a server."""
        self.asked.append(request)
        self._selector.register(request, selectors.EVENT_READ, request)

    def run(self, trial: Trial, job: Job, address: Address) -> None:
        """A process has begun to run this on a server."""
        self.running[trial] = job, address
        self._selector.register(trial.channel, selectors.EVENT_READ, trial)

    def finish(self, source: Trial | Request) -> Any:
        """Take one of these out: its Job, (Job, address) or None."""
        self._selector.unregister(source if isinstance(source, Request) else source.channel)
        if isinstance(source, Request):
            return self.asked.remove(source)
        return self.building.pop(source) if source in self.building else self.running.pop(source)

    def complain(self, address: Address, message: str) -> None:
        """Keep what went wrong at a server."""
        self.complaint = f"{as_text(address)}: {message}"

    def wait(self, seconds: float) -> set[Trial | Request]:
        """Those that can be read, after a while if there are none."""
        return {key.data for key, _ in self._selector.select(max(0.0, seconds))}

    def close(self) -> None:
        """Take all questions back; processes are their owner's."""
        for request in self.asked:
            request.close()
        self._selector.close()
