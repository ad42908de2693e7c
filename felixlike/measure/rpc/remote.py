"""Run candidates on servers: TVM's tracker hands them out, each gets one candidate at a time, in a session of its own.

In: a task and candidates. Out: a Measurement each. Candidates are built here, several at a time, while servers run
others. A candidate whose server is lost goes to another server, once.
"""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice

from felixlike.errors import TrackerFailed
from felixlike.frontend.task import Task
from felixlike.measure.candidate import Schedulable
from felixlike.measure.evaluator import better
from felixlike.measure.interface import Results
from felixlike.measure.local.builder import Workshop
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.job_queue import Job, Traffic
from felixlike.measure.rpc.server_pool import Fleet
from felixlike.measure.rpc.server_probe import Survey
from felixlike.measure.rpc.sessions import Sessions
from felixlike.measure.rpc.tracker import Request

_MOST_LOSSES = 2
"""Sessions that may end while a candidate runs; then it is taken to be the cause."""
_MOST_FRUITLESS = 10
"""Sessions in a row that may fail before a candidate runs."""
_BUILT_AHEAD = 2
"""Candidates that wait for a server, for each that is built at a time."""
_RETRY_SECONDS = 1.0


class Remote:
    """A Place: a fleet's servers, for what a workshop builds.

    compiler: links that.  patience: how long to wait for a server while there is none, s.  survey: tries them all."""

    def __init__(self, workshop: Workshop, fleet: Fleet, *, compiler: str, patience: float) -> None:
        self._workshop = workshop
        self._processes = workshop.processes
        self._fleet = fleet
        self._patience = patience
        self._exports = Exports(workshop, compiler)
        self._sessions = Sessions(workshop, self._exports)
        self.survey = Survey(workshop, fleet, self._exports, self._sessions, patience)

    @cached_property
    def devices(self) -> frozenset[str]:
        """Names of the devices of the servers that are free at the first call, which waits for one.  Raises WrongDevice
        if none fits the target, WorkerFailed if none is free in time."""
        seen = self.survey()
        self._fleet.refuse({server.address: server.problem for server in seen if server.problem})
        return frozenset(server.device for server in seen if not server.problem)

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """See MeasurePool.stream."""
        limits = self._workshop.limits
        with (
            self._workshop.claimed(),
            self._workshop.examined(task, verify=verify) as examination,
            contextlib.closing(Traffic()) as traffic,
        ):
            source = enumerate(candidates)
            more = True
            while True:
                self._workshop.deadline.check()
                while more and self._has_room(traffic):
                    more = False
                    for index, candidate in islice(source, 1):
                        more = True
                        yield from self._begin(traffic, index, candidate, examination.bytes)
                if traffic.is_over:
                    return
                self._ask(traffic)
                answered = self._wait(traffic)
                yield from self._built(traffic, answered, (task.key, verify))
                request = examination.request(base=limits.tolerance, timing=limits.timing, best=best)
                self._hand_out(traffic, answered, examination.bytes, request)
                for job, result in self._returned(traffic, answered):
                    self._workshop.earlier.keep((task.key, verify, job.code), result)
                    best = better(best, result.repeats)
                    yield self._done(job, result)

    def _has_room(self, traffic: Traffic) -> bool:
        workers = self._workshop.workers
        return len(traffic.building) < workers and len(traffic.ready) < _BUILT_AHEAD * workers

    def _begin(
        self, traffic: Traffic, index: int, candidate: Schedulable, memory: int
    ) -> Iterator[tuple[int, Measurement]]:
        """Start to build; yields a candidate that has no module."""
        trial, library = self._exports.candidate(index, candidate, memory)
        job = Job(index, library)
        if isinstance(trial, Measurement):
            yield self._done(job, trial)
        else:
            traffic.build(trial, job)

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
        builds = [self._workshop.limits.build_seconds - trial.elapsed for trial in traffic.building]
        runs = [self._sessions.seconds - trial.elapsed for trial in traffic.running]
        started = time.monotonic()
        answered = traffic.wait(min([*builds, *runs, _RETRY_SECONDS]))
        if traffic.ready and not traffic.running:
            traffic.idle += time.monotonic() - started
        if traffic.fruitless > _MOST_FRUITLESS:
            self._fleet.give_up(f"{traffic.fruitless} sessions failed one after the other", traffic.complaint)
        if traffic.idle > self._patience:
            self._fleet.give_up(f"no server was free for {traffic.idle:.0f} s", traffic.complaint)
        return answered

    def _built(
        self, traffic: Traffic, answered: set[Trial | Request], context: tuple[str, bool]
    ) -> Iterator[tuple[int, Measurement]]:
        """Take in what is built; yields what failed, or has the code of an earlier one.  context: task, verified."""
        for trial in tuple(traffic.building):
            if trial not in answered and trial.elapsed < self._workshop.limits.build_seconds:
                continue
            job = traffic.finish(trial)
            answer = trial.answer() if trial in answered else trial.expire()
            self._processes.end(trial)
            job.build_seconds = answer["elapsed"]
            if answer["status"] is not Status.OK:
                yield self._done(job, measurement(answer, build_seconds=job.build_seconds, run_seconds=0.0))
                continue
            job.code = answer["code"]
            earlier = self._workshop.earlier.find((*context, job.code))
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
                traffic.run(self._sessions.begin(grant, job.library, memory, examination), job, grant.address)

    def _returned(self, traffic: Traffic, answered: set[Trial | Request]) -> Iterator[tuple[Job, Measurement]]:
        """Take in what servers have said; yields what is done with."""
        for trial in tuple(traffic.running):
            if trial not in answered and trial.elapsed < self._sessions.seconds:
                continue
            job, address = traffic.finish(trial)
            answer = trial.answer() if trial in answered else {**trial.expire(), "lost": "during"}
            orphaned = trial.lost
            self._processes.end(trial)
            if orphaned:
                self._processes.mourn(trial.generation)
            elif answer.get("unfit"):
                self._fleet.refuse({address: answer["unfit"]})
            elif answer.get("lost") == "before":
                traffic.fruitless += 1
                traffic.complain(address, answer["message"])
            else:
                job.losses += "lost" in answer
                if "lost" not in answer or job.losses == _MOST_LOSSES:
                    traffic.idle, traffic.fruitless = 0.0, 0
                    self._processes.praise()
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
