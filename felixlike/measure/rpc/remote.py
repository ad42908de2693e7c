"""Run candidates on servers that TVM's tracker grants, one candidate at a time in a session of its own.

The input is a task and candidates, the output a Measurement of each. This machine builds several candidates at a time
while servers run others. A candidate whose server is lost moves to another server, once.
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
from felixlike.measure.local.build_limit import BuildLimit
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement
from felixlike.measure.rpc.exports import Exports
from felixlike.measure.rpc.job_queue import Job, JobQueue
from felixlike.measure.rpc.server_limits import SERVER_LIMITS
from felixlike.measure.rpc.server_pool import ServerPool
from felixlike.measure.rpc.server_probe import ServerProbe
from felixlike.measure.rpc.sessions import Sessions
from felixlike.measure.rpc.tracker import Request


class Remote:
    """Runner that executes a builder's candidates on the servers of a `ServerPool`.

    Args:
        builder: Builds the candidates.
        server_pool: The servers.
        compiler: C compiler that links the candidates' libraries.
        patience: How long to wait for a server while none is free, s.

    Attributes:
        survey: Probe of all free servers.
    """

    def __init__(self, builder: Builder, server_pool: ServerPool, *, compiler: str, patience: float) -> None:
        self._builder = builder
        self._processes = builder.processes
        self._server_pool = server_pool
        self._patience = patience
        self._exports = Exports(builder, compiler)
        self._sessions = Sessions(builder, self._exports)
        self.survey = ServerProbe(builder, server_pool, self._exports, self._sessions, patience)

    @cached_property
    def devices(self) -> frozenset[str]:
        """Names of the devices of the servers that are free at the first call, which waits for one.

        Raises WrongDevice if no server fits the target, WorkerFailed if none becomes free in time."""
        seen = self.survey()
        self._server_pool.refuse({server.address: server.problem for server in seen if server.problem})
        return frozenset(server.device for server in seen if not server.problem)

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """See MeasurePool.stream."""
        limits = self._builder.limits
        with (
            self._builder.claimed(),
            self._builder.reference_for(task, verify=verify) as reference_data,
            contextlib.closing(JobQueue(BuildLimit(self._builder.limits))) as job_queue,
        ):
            source = enumerate(candidates)
            more = True
            while True:
                self._builder.deadline.check()
                while more and self._has_room(job_queue):
                    more = False
                    for index, candidate in islice(source, 1):
                        more = True
                        yield from self._begin(job_queue, index, candidate, reference_data.bytes)
                if job_queue.is_over:
                    return
                self._ask(job_queue)
                answered = self._wait(job_queue)
                yield from self._built(job_queue, answered, (task.key, verify))
                request = reference_data.request(base=limits.tolerance, timing=limits.timing, best=best)
                self._hand_out(job_queue, answered, reference_data.bytes, request)
                for job, result in self._returned(job_queue, answered):
                    self._builder.code_cache.keep((task.key, verify, job.code), result)
                    best = better(best, result.repeats, limits.timing)
                    yield self._done(job, result)

    def _has_room(self, job_queue: JobQueue) -> bool:
        """Return whether another candidate may be built."""
        workers = self._builder.workers
        return len(job_queue.building) < workers and len(job_queue.ready) < SERVER_LIMITS.built_ahead * workers

    def _begin(
        self, job_queue: JobQueue, index: int, candidate: Schedulable, memory: int
    ) -> Iterator[tuple[int, Measurement]]:
        """Start to build a candidate; yield its Measurement if it has no module."""
        trial, library = self._exports.candidate(index, candidate, memory)
        job = Job(index, library)
        if isinstance(trial, Measurement):
            yield self._done(job, trial)
        else:
            job_queue.build(trial, job)

    def _ask(self, job_queue: JobQueue) -> None:
        """Request a server from the tracker for each ready candidate."""
        while len(job_queue.asked) < len(job_queue.ready):
            try:
                job_queue.ask(self._server_pool.request())
            except TrackerFailed as failure:
                job_queue.complaint = str(failure)
                return

    def _wait(self, job_queue: JobQueue) -> set[Trial | Request]:
        """Wait for processes and requests and return the readable ones; raise WorkerFailed if servers are missing."""
        builds = [job_queue.build_limit.seconds - trial.elapsed for trial in job_queue.building]
        runs = [self._sessions.seconds - trial.elapsed for trial in job_queue.running]
        started = time.monotonic()
        answered = job_queue.wait(min([*builds, *runs, SERVER_LIMITS.retry_seconds]))
        if job_queue.ready and not job_queue.running:
            job_queue.idle += time.monotonic() - started
        if job_queue.fruitless > SERVER_LIMITS.fruitless:
            self._server_pool.give_up(f"{job_queue.fruitless} consecutive sessions failed", job_queue.complaint)
        if job_queue.idle > self._patience:
            self._server_pool.give_up(f"no server was free for {job_queue.idle:.0f} s", job_queue.complaint)
        return answered

    def _built(
        self, job_queue: JobQueue, answered: set[Trial | Request], context: tuple[str, bool]
    ) -> Iterator[tuple[int, Measurement]]:
        """Handle finished builds; yield the Measurements of failures and of candidates with an earlier one's code.

        `context` is the task's key and whether outputs are verified."""
        for trial in tuple(job_queue.building):
            if trial not in answered and trial.elapsed < job_queue.build_limit.seconds:
                continue
            job = job_queue.finish(trial)
            answer = trial.answer() if trial in answered else job_queue.build_limit.explained(trial.expire())
            self._processes.end(trial)
            job.build_seconds = answer["elapsed"]
            if answer["status"] is not Status.OK:
                yield self._done(job, measurement(answer, build_seconds=job.build_seconds, run_seconds=0.0))
                continue
            job_queue.build_limit.add(job.build_seconds)
            job.code = answer["code"]
            earlier = self._builder.code_cache.find((*context, job.code))
            if earlier is None:
                job_queue.ready.append(job)
            else:
                yield self._done(job, replace(earlier, build_seconds=job.build_seconds))

    def _hand_out(
        self, job_queue: JobQueue, answered: set[Trial | Request], memory: int, reference_data: Message
    ) -> None:
        """Start the longest waiting candidate on each server that the tracker has granted."""
        for request in [request for request in job_queue.asked if request in answered]:
            job_queue.finish(request)
            try:
                grant = request.grant()
            except TrackerFailed as failure:
                job_queue.complaint = str(failure)
                continue
            finally:
                request.close()
            # A granted server without a connection registers again after some seconds, so others are granted meanwhile.
            if not self._server_pool.is_refused(grant.address):
                job = job_queue.ready.popleft()
                job_queue.run(self._sessions.begin(grant, job.library, memory, reference_data), job, grant.address)

    def _returned(self, job_queue: JobQueue, answered: set[Trial | Request]) -> Iterator[tuple[Job, Measurement]]:
        """Handle ended sessions; yield the jobs that are done, requeue those whose session was lost."""
        for trial in tuple(job_queue.running):
            if trial not in answered and trial.elapsed < self._sessions.seconds:
                continue
            job, address = job_queue.finish(trial)
            answer = trial.answer() if trial in answered else trial.expire()
            if trial.closed:  # it gave no answer: the server may be the cause, not the candidate
                answer = {**answer, "lost": "during"}
            orphaned = trial.lost
            self._processes.end(trial)
            if orphaned:
                self._processes.record_death(trial.generation)
            elif answer.get("unfit"):
                self._server_pool.refuse({address: answer["unfit"]})
            elif answer.get("lost") == "before":
                job_queue.fruitless += 1
                job_queue.complain(address, answer["message"])
            else:
                job.losses += "lost" in answer
                if "lost" not in answer or job.losses == SERVER_LIMITS.losses:
                    job_queue.idle, job_queue.fruitless = 0.0, 0
                    self._processes.reset_deaths()
                    result = measurement(
                        answer,
                        build_seconds=job.build_seconds,
                        run_seconds=answer["elapsed"],
                        timing=self._builder.limits.timing,
                    )
                    if job.losses == SERVER_LIMITS.losses:
                        what = f"its process on the server died {job.losses} times: {result.message}"
                        result = replace(result, message=what)
                    yield job, result
                    continue
                job_queue.complain(address, answer["message"])
            job_queue.ready.appendleft(job)

    def _done(self, job: Job, result: Measurement) -> tuple[int, Measurement]:
        """Remove a finished job's files and return its index and Measurement."""
        shutil.rmtree(job.library.parent, ignore_errors=True)
        return job.index, result
