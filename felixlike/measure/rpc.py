"""Measure on servers: TVM's tracker hands them out, each gets one candidate at a time, in a session of its own.

In and out: as MeasurePool. Candidates are built here, several at a time, while servers run others; every session is
led by a process of its own on this machine, so a server that dies or hangs costs no more than that. Its candidate goes
to another server, once.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from felixlike import options
from felixlike.errors import InvalidSchedule, TrackerFailed, WorkerFailed
from felixlike.frontend.task import Task
from felixlike.hardware import c_compiler
from felixlike.measure import assistant
from felixlike.measure.candidate import Schedulable, Untuned, schedulable
from felixlike.measure.evaluator import better
from felixlike.measure.fleet import Fleet
from felixlike.measure.interface import Results
from felixlike.measure.limits import Limits
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement, refused
from felixlike.measure.pool import MeasurePool
from felixlike.measure.tracker import Address, Grant, Request
from felixlike.measure.traffic import Job, Traffic
from felixlike.measure.trial import Trial

_MOST_LOSSES = 2
"""Sessions that may end while a candidate runs; then it is taken to be the cause."""
_MOST_FRUITLESS = 10
"""Sessions in a row that may fail before a candidate runs."""
_BUILT_AHEAD = 2
"""Candidates that wait for a server, for each that is built at a time."""
_GRACE_SECONDS = 5.0
"""A server ends a session that takes too long; if it does not, it is given up so much later."""
_RETRY_SECONDS = 1.0
_OTHERS_SECONDS = 2.0
"""How long to wait for a second server where one is there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A server that was tried.  device: its name.  version: of TVM there.  problem: why it cannot be used, empty if it
    can.  measurement: of the task it was given, if any."""

    address: Address
    device: str
    version: str
    problem: str
    measurement: Measurement | None


class RpcPool(MeasurePool):
    """Servers that measure for one target.  A context manager; not for use by several threads.

    target: the TVM target of the tasks; servers whose device differs are not used.  tracker: HOST:PORT of a
    tvm.exec.rpc_tracker.  key: that of the servers (tvm.exec.rpc_server --key).  limits: run_seconds count for a whole
    session, sending included.  workers: how many candidates are built here at a time.  reuse: as MeasurePool's.
    patience: how long to wait for a server while there is none, s.

    Raises TrackerFailed if the tracker cannot be reached or has no server under the key, WorkerFailed without a C
    compiler, which links what is sent.  Only `check`, which is for what will run on this machine, runs here."""

    def __init__(
        self,
        target: Any,
        *,
        tracker: str,
        key: str,
        limits: Limits | None = None,
        workers: int | None = None,
        reuse: bool = True,
        patience: float = 60.0,
    ) -> None:
        self._patience = options.real(
            patience, "patience", positive=True, finite=False, where="RpcPool", unit="seconds"
        )
        self._fleet = Fleet(tracker, key)
        compiler = c_compiler()
        if compiler is None:
            raise WorkerFailed(
                "there is no C compiler, which links what servers run", where="RpcPool", remedy="install gcc"
            )
        self._compiler = compiler
        super().__init__(target, limits=limits, workers=workers, reuse=reuse)

    @cached_property
    def devices(self) -> frozenset[str]:
        """Names of the devices of the servers that are free at the first call, which waits for one.  Raises WrongDevice
        if none fits the target, WorkerFailed if none is free in time."""
        seen = self._try_all()
        self._fleet.refuse({server.address: server.problem for server in seen if server.problem})
        return frozenset(server.device for server in seen if not server.problem)

    def survey(self, task: Task) -> tuple[Seen, ...]:
        """Try every server that is free now, also with the task as it is.  Raises WorkerFailed if there is none."""
        return self._try_all(task)

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """As MeasurePool.stream.  A candidate whose server is lost goes to another; the second time it has crashed.

        Raises also WrongDevice if the device of every server differs from the target, WorkerFailed if there is no
        server for longer than `patience`, or a C compiler that fails."""
        self._claim()
        traffic = Traffic()
        try:
            examination = self._examine(task, verify=verify)
            source = enumerate(candidates)
            more = True
            while True:
                while more and self._has_room(traffic):
                    index, candidate = next(source, (0, None))
                    more = candidate is not None
                    if candidate is not None:
                        yield from self._begin(traffic, index, candidate, examination.bytes)
                if traffic.is_over:
                    return
                self._ask(traffic)
                answered = self._wait(traffic)
                yield from self._built(traffic, answered, (task.key, verify))
                request = examination.request(base=self.limits.tolerance, timing=self.limits.timing, best=best)
                self._hand_out(traffic, answered, examination.bytes, request)
                for job, result in self._returned(traffic, answered):
                    self._remember((task.key, verify, job.code), result)
                    best = better(best, result.repeats)
                    yield self._done(job, result)
        finally:
            traffic.close()
            self._end()

    def _has_room(self, traffic: Traffic) -> bool:
        return len(traffic.building) < self._workers and len(traffic.ready) < _BUILT_AHEAD * self._workers

    def _begin(
        self, traffic: Traffic, index: int, candidate: Schedulable, memory: int
    ) -> Iterator[tuple[int, Measurement]]:
        """Start to build; yields a candidate that has no module."""
        started = time.monotonic()
        try:
            module = schedulable(candidate).module()
        except InvalidSchedule as refusal:
            yield index, refused(refusal, time.monotonic() - started)
            return
        trial, library = self._export(f"candidate{index}", module, memory)
        traffic.build(trial, Job(index, library))

    def _export(self, name: str, module: Any, memory: int, *, target: str | None = None) -> tuple[Trial, Path]:
        """A process that builds a module to a file, and the file, in a folder of its own."""
        folder = self._directory / name
        folder.mkdir(exist_ok=True)
        library = folder / f"{name}.so"
        export = {"path": str(library), "compiler": self._compiler}
        return self._open(0, module, memory, target=target, export=export), library

    def _ask(self, traffic: Traffic) -> None:
        """Queue at the tracker, once for each candidate that is built."""
        while len(traffic.asked) < len(traffic.ready):
            try:
                traffic.ask(self._fleet.request())
            except TrackerFailed as failure:
                traffic.complaint = str(failure)
                return

    def _wait(self, traffic: Traffic) -> set[Trial | Request]:
        """Wait until there is something to do; what can be read.  Counts how long there is no server."""
        builds = [self.limits.build_seconds - trial.elapsed for trial in traffic.building]
        runs = [self._session_seconds - trial.elapsed for trial in traffic.running]
        started = time.monotonic()
        answered = traffic.wait(min([*builds, *runs, _RETRY_SECONDS]))
        if traffic.ready and not traffic.running:
            traffic.idle += time.monotonic() - started
        if traffic.fruitless > _MOST_FRUITLESS:
            self._give_up(f"{traffic.fruitless} sessions failed one after the other", traffic.complaint)
        if traffic.idle > self._patience:
            self._give_up(f"no server was free for {traffic.idle:.0f} s", traffic.complaint)
        return answered

    def _give_up(self, what: str, complaint: str) -> None:
        """Raises WorkerFailed, its kind TrackerFailed where the tracker has none."""
        self._fleet.registered()
        raise WorkerFailed(
            what + (f"; what went wrong last: {complaint}" if complaint else ""),
            where=str(self._fleet),
            remedy="ask `felixlike doctor --tracker HOST:PORT`, and start the servers again that do not answer",
        )

    def _built(
        self, traffic: Traffic, answered: set[Trial | Request], context: tuple[str, bool]
    ) -> Iterator[tuple[int, Measurement]]:
        """Take in what is built; yields what failed, or has the code of an earlier one.  context: task, verified."""
        for trial in tuple(traffic.building):
            if trial not in answered and trial.elapsed < self.limits.build_seconds:
                continue
            job = traffic.finish(trial)
            answer = trial.answer() if trial in answered else trial.expire()
            self._close(trial)
            job.build_seconds = answer["elapsed"]
            if answer["status"] is not Status.OK:
                yield self._done(job, measurement(answer, build_seconds=job.build_seconds, run_seconds=0.0))
                continue
            job.code = answer["code"]
            earlier = self._earlier((*context, job.code))
            if earlier is None:
                traffic.ready.append(job)
            else:
                yield self._done(job, replace(earlier, build_seconds=job.build_seconds))

    def _hand_out(self, traffic: Traffic, answered: set[Trial | Request], memory: int, examination: Message) -> None:
        """Give each server that the tracker has given the candidate that waits longest."""
        for request in [asked for asked in traffic.asked if asked in answered]:
            traffic.finish(request)
            try:
                grant = request.grant()
            except TrackerFailed as failure:
                traffic.complaint = str(failure)
                continue
            finally:
                request.close()
            # A server that nobody connects to offers itself again some seconds later: others get their turn.
            if not self._fleet.is_refused(grant.address):
                job = traffic.ready.popleft()
                traffic.run(self._session(grant, job.library, memory, examination), job, grant.address)

    def _session(
        self, grant: Grant, library: Path | None, memory: int, examination: Message | None, *, survey: bool = False
    ) -> Trial:
        """A process that connects to a server and runs a library there."""
        request = {
            "server": [*grant.address, grant.password],
            "seconds": self.limits.run_seconds,
            "assistant": str(self._assistant),
            "library": None if library is None else str(library),
            "target": self._target,
            "memory": self.limits.memory_bytes + memory,
            "run": examination,
            "survey": survey,
        }
        return self._start(0, request)

    @property
    def _session_seconds(self) -> float:
        return self.limits.run_seconds + _GRACE_SECONDS

    def _returned(self, traffic: Traffic, answered: set[Trial | Request]) -> Iterator[tuple[Job, Measurement]]:
        """Take in what servers have said; yields what is done with."""
        for trial in tuple(traffic.running):
            if trial not in answered and trial.elapsed < self._session_seconds:
                continue
            job, address = traffic.finish(trial)
            answer = trial.answer() if trial in answered else {**trial.expire(), "lost": "during"}
            orphaned = trial.lost
            self._close(trial)
            if orphaned:
                self._mourn(trial.generation)
            elif answer.get("unfit"):
                self._fleet.refuse({address: answer["unfit"]})
            elif answer.get("lost") == "before":
                traffic.fruitless += 1
                traffic.complain(address, answer["message"])
            else:
                job.losses += "lost" in answer
                if "lost" not in answer or job.losses == _MOST_LOSSES:
                    traffic.idle, traffic.fruitless, self._deaths = 0.0, 0, 0
                    result = measurement(answer, build_seconds=job.build_seconds, run_seconds=answer["elapsed"])
                    if job.losses == _MOST_LOSSES:
                        what = f"its process on the server died, {job.losses} times: {result.message}"
                        result = replace(result, message=what)
                    yield job, result
                    continue
                traffic.complain(address, answer["message"])
            traffic.ready.appendleft(job)

    def _done(self, job: Job, result: Measurement) -> tuple[int, Measurement]:
        """What is said of a job whose files are not needed any more."""
        shutil.rmtree(job.library.parent, ignore_errors=True)
        return job.index, result

    @cached_property
    def _assistant(self) -> Path:
        """The file of the library that goes ahead of every candidate."""
        return self._library("assistant", assistant.module(), 0, target="llvm")

    def _library(self, name: str, module: Any, memory: int, *, target: str | None = None) -> Path:
        """Build a module that is known to be good to a file.  Raises WorkerFailed."""
        trial, library = self._export(name, module, memory, target=target)
        answer = trial.wait(self.limits.reference_seconds)
        self._close(trial)
        if answer["status"] is not Status.OK:
            raise WorkerFailed(
                f"the library {name} could not be built: {answer['status']}, {answer['message']}",
                where="RpcPool",
                remedy=f"see whether {self._compiler} works",
            )
        return library

    def _try_all(self, task: Task | None = None) -> tuple[Seen, ...]:
        """Open a session with every server that is free now, all at a time.  Raises WorkerFailed if there is none."""
        self._claim()
        try:
            _ = self._assistant  # built before servers are asked for, so that none waits for it
            library, memory, request = None, 0, None
            if task is not None:
                examination = self._examine(task, verify=True)
                memory = examination.bytes
                library = self._library("survey", Untuned(task).module(), memory)
                request = examination.request(base=self.limits.tolerance, timing=self.limits.timing, best=None)
            grants = self._all_free()
            sessions = [self._session(grant, library, memory, request, survey=True) for grant in grants]
            return tuple(self._seen(grant.address, trial) for grant, trial in zip(grants, sessions, strict=True))
        finally:
            self._end()

    def _all_free(self) -> list[Grant]:
        """Ask for all servers that are free, and wait for one if none is.  Raises WorkerFailed."""
        asked = [self._fleet.request() for _ in range(max(1, self._fleet.registered().free))]
        grants: list[Grant] = []
        try:
            for request in asked:
                grant = request.wait(_OTHERS_SECONDS if grants else self._patience)
                if grant is None:
                    break
                grants.append(grant)
        finally:
            for request in asked:
                request.close()
        if not grants:
            self._give_up(f"no server was free for {self._patience:.0f} s", "")
        return grants

    def _seen(self, address: Address, trial: Trial) -> Seen:
        answer = trial.wait(self._session_seconds)
        self._close(trial)
        device, problem = answer.get("device", ""), answer.get("unfit", "")
        if not problem and (not device or "lost" in answer):
            problem = f"no session with it came about: {answer.get('message', 'its time was up')}"
        result = None
        if not problem and (answer["status"] is not Status.OK or "repeats" in answer):
            result = measurement(answer, build_seconds=0.0, run_seconds=answer["elapsed"])
        return Seen(address, device, answer.get("version", ""), problem, result)
