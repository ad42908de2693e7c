"""Probe every free server: its device, and whether it can be used.

The input is a pool's servers and optionally a task that runs on them. The output is a `Seen` of each server.
"""

import contextlib
from dataclasses import dataclass

from felixlike.frontend.task import Task
from felixlike.measure.candidate import Untuned
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.outcome import measurement
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.server_limits import SERVER_LIMITS
from felixlike.measure.rpc.server_pool import ServerPool
from felixlike.measure.rpc.sessions import Sessions
from felixlike.measure.rpc.tracker import Address, Grant


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of probing one server.

    Attributes:
        address: Host and port.
        device: Name of the server's device.
        version: Version of TVM on the server.
        problem: Why the server cannot be used; empty if it can.
        measurement: Measurement of the task that ran there; None without one.
    """

    address: Address
    device: str
    version: str
    problem: str
    measurement: Measurement | None


@dataclass(frozen=True, slots=True)
class ServerProbe:
    """Probe of the servers of one pool; `patience` is how long to wait for the first of them, s."""

    builder: Builder
    server_pool: ServerPool
    exports: Exports
    sessions: Sessions
    patience: float

    def __call__(self, task: Task | None = None) -> tuple[Seen, ...]:
        """Open a session with every free server at the same time, and run the unscheduled task if one is given.

        Raises WorkerFailed if no server becomes free within `patience`."""
        with self.builder.claimed(), contextlib.ExitStack() as used:
            _ = self.exports.assistant  # built before servers are requested, so that no server waits for it
            library, memory, request = None, 0, None
            if task is not None:
                reference_data = used.enter_context(self.builder.reference_for(task, verify=True))
                memory = reference_data.bytes
                library = self.exports.known("survey", Untuned(task).module(), memory)
                limits = self.builder.limits
                request = reference_data.request(base=limits.tolerance, timing=limits.timing, best=None)
            grants = self._all_free()
            trials = [self.sessions.begin(grant, library, memory, request, survey=True) for grant in grants]
            return tuple(self._seen(grant.address, trial) for grant, trial in zip(grants, trials, strict=True))

    def _all_free(self) -> list[Grant]:
        """Request all free servers, or wait for one if none is free; raise WorkerFailed."""
        requests = [self.server_pool.request() for _ in range(max(1, self.server_pool.registered().free))]
        grants: list[Grant] = []
        try:
            for request in requests:
                grant = request.wait(SERVER_LIMITS.others_seconds if grants else self.patience)
                if grant is None:
                    break
                grants.append(grant)
        finally:
            for request in requests:
                request.close()
        if not grants:
            self.server_pool.give_up(f"no server was free for {self.patience:.0f} s", "")
        return grants

    def _seen(self, address: Address, trial: Trial) -> Seen:
        """Wait for a session's answer and return what it says about the server."""
        answer = trial.wait(self.sessions.seconds)
        self.builder.processes.end(trial)
        device, problem = answer.get("device", ""), answer.get("unfit", "")
        if not problem and (not device or "lost" in answer):
            problem = f"no session with it could be opened: {answer.get('message', 'timed out')}"
        result = None
        if not problem and (answer["status"] is not Status.OK or "repeats" in answer):
            result = measurement(answer, build_seconds=0.0, run_seconds=answer["elapsed"])
        return Seen(address, device, answer.get("version", ""), problem, result)
