"""Where candidates are built, and what they are given and compared with is made, whether they run here or on servers.

In: tasks and candidates. Out: processes that build them, and an Examination a task. Candidates can crash, hang or eat
memory without harm: each lives in a process of its own, forked from a server that has TVM imported.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from felixlike import options, tvmlib
from felixlike.errors import InvalidSchedule, WorkerFailed
from felixlike.frontend.task import Task
from felixlike.hardware import host_target, kind_of, resolve_target
from felixlike.hardware.probe import usable_cores
from felixlike.measure.candidate import Schedulable, schedulable
from felixlike.measure.earlier import Earlier
from felixlike.measure.examination import Examination, unverified, verified
from felixlike.measure.limits import Limits
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import refused
from felixlike.measure.processes import Processes
from felixlike.measure.trial import Trial


class Workshop:
    """For one user at a time, and one target.

    target, limits, workers, reuse: as MeasurePool's.  kind: the target's.  processes: all that it has
    started.  earlier: what came of earlier candidates."""

    def __init__(
        self, target: Any, *, limits: Limits | None = None, workers: int | None = None, reuse: bool = True
    ) -> None:
        target = resolve_target(target)
        if workers is not None:
            workers = options.whole(
                workers, "workers", least=1, where="MeasurePool", otherwise="None for as many as there are cores"
            )
        if limits is not None:
            options.of_kind(limits, Limits, "limits", where="MeasurePool", remedy="give measure.Limits(…), or None")
        self.kind = kind_of(target)
        cores = int(target.attrs.get("num-cores", 1)) if self.kind.on_host else usable_cores()
        self.limits = Limits() if limits is None else limits
        self.target = str(target)
        self.workers = workers or cores
        self.earlier = Earlier(reuse=reuse)
        self._host = self.target if self.kind.on_host else str(host_target())
        self._examinations: dict[tuple[str, bool], Examination] = {}
        self._busy = False
        self.processes = Processes(threads=cores)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """For one user, until its end, which ends all processes under way.  Raises WorkerFailed if it is closed, or
        claimed already."""
        if self.processes.closed:
            raise WorkerFailed("the pool is closed", where="MeasurePool", remedy="open another one")
        if self._busy:
            raise WorkerFailed(
                "another stream of this pool is still open",
                where="MeasurePool",
                remedy="read it to its end or close it: two at a time would disturb each other's timings",
            )
        self._busy = True
        try:
            yield
        finally:
            self.processes.end_all()
            self._busy = False

    def examine(self, task: Task, *, verify: bool) -> Examination:
        """The task's inputs and answers, made at the first call.  Raises ReferenceFailed."""
        key = (task.key, verify)
        if key not in self._examinations:
            home = self.processes.directory / f"{task.key}-{'verified' if verify else 'unverified'}"
            self._examinations[key] = verified(task, home, self._run_alone) if verify else unverified(task, home)
        return self._examinations[key]

    def begin(self, index: int, candidate: Schedulable, memory: int, **extra: Any) -> Trial | Measurement:
        """A process that builds a candidate, or what came of it if it has no module.  See `build`."""
        started = time.monotonic()
        try:
            module = schedulable(candidate).module()
        except InvalidSchedule as refusal:
            return refused(refusal, time.monotonic() - started)
        return self.build(index, module, memory, **extra)

    def build(self, index: int, module: Any, memory: int, *, target: str | None = None, **extra: Any) -> Trial:
        """A process that builds a module.

        index: of its Trial.  memory: bytes for its buffers.  target: None for the workshop's.  extra: more entries of
        its request.  Raises WorkerFailed."""
        request = {
            "module": str(tvmlib.ir.save_json(module)),
            "target": self.target if target is None else target,
            "memory": self.limits.memory_bytes + memory,
        }
        return self.processes.begin(index, {**request, **extra})

    def _run_alone(self, module: Any, memory: int, request: Message) -> Message:
        """Build and run a module on the host under the reference's limits; the answer to the run request, or the
        failure."""
        seconds = self.limits.reference_seconds
        while True:
            trial = self.build(0, module, memory, target=self._host)
            try:
                answer = trial.wait(seconds)
                if answer["status"] is Status.OK:
                    answer = trial.run(request, seconds)
            finally:
                self.processes.end(trial)
            if not trial.lost:
                return answer
            self.processes.mourn(trial.generation)
