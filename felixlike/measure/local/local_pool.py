"""Run candidates on this machine: build several at a time, run one at a time.

The input is a task and candidates, the output a Measurement of each. On a CPU, building and running alternate in small
batches, and nothing else of the pool runs beside a candidate. Candidates for a GPU are built while others run
(`builds.py`).
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from felixlike import _tvm
from felixlike._util.deadline import OutOfTime
from felixlike.errors import InvalidModel, NoSpaceLeft, ReferenceFailed
from felixlike.frontend.task import Task
from felixlike.hardware import device_name
from felixlike.hardware.probe import memory_bytes
from felixlike.measure.candidate import Schedulable
from felixlike.measure.evaluator import better
from felixlike.measure.interface import Checked, Checks, Results
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.builds import Builds
from felixlike.measure.local.interleaved_timing import interleave, without_turn
from felixlike.measure.local.machine_lock import alone_on_machine
from felixlike.measure.local.steps import Steps, complete, together
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement

_WAITING_SHARE = 4
"""Buffers of candidates that wait for interleaved timing use at most 1 / 4 of the memory; chosen by hand."""


class Local:
    """Runner that executes a builder's candidates on this machine, in the processes that built them.

    Args:
        builder: Builds the candidates.
        waiting: See `MeasurePool`.
        ahead: Build candidates while others run; None to do so if they do not run on the CPU that builds them.
    """

    def __init__(self, builder: Builder, *, waiting: int | None = None, ahead: bool | None = None) -> None:
        self._builder = builder
        self._processes = builder.processes
        self._ahead = not builder.kind.on_host if ahead is None else ahead
        self._batch = waiting or builder.kind.waiting * builder.workers

    @property
    def devices(self) -> frozenset[str]:
        """The name of this machine's device."""
        return frozenset([device_name(_tvm.Target(self._builder.target))])

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """See MeasurePool.stream."""
        limits, known = self._builder.limits, self._builder.code_cache
        with self._builder.claimed(), self._builder.reference_for(task, verify=verify) as reference_data:
            room = max(1, memory_bytes() // _WAITING_SHARE // max(1, reference_data.bytes))
            builds = Builds(self._builder, candidates, reference_data.bytes, size=self._batch, ahead=self._ahead)
            with contextlib.closing(builds):
                while builds.begin_batch():
                    timed: list[tuple[Trial, Message]] = []
                    copies: dict[str, list[Trial]] = {}
                    while (trial := (yield from builds.next())) is not None:
                        code = trial.code if known.reuse else str(trial.index)
                        if trial.lost:  # it was idle when its fork server died, so it is built again
                            self._processes.record_death(trial.generation)
                            self._processes.end(trial)
                            builds.again(trial)
                            continue
                        if code in copies:
                            self._processes.end(trial)
                            copies[code].append(trial)
                            continue
                        earlier = known.find((task.key, verify, trial.code))
                        if earlier is not None:
                            self._processes.end(trial)
                            yield trial.index, replace(earlier, build_seconds=trial.build_seconds)
                            continue
                        copies[code] = []
                        request = reference_data.request(base=limits.tolerance, timing=limits.timing, best=best)
                        answer = self._run(builds, trial, request)
                        if answer is None:
                            break
                        timed.append((trial, answer))
                        best = better(best, timed[-1][1].get("repeats", ()), limits.timing)
                        for far in without_turn(timed, limits.timing, room):
                            self._processes.end(far)
                    with alone_on_machine():
                        retimed = interleave(timed, limits.timing, limits.run_seconds, builds.run)
                    for first, answer in retimed:
                        self._processes.end(first)
                        answer = {**answer, "kernels": first.kernels}
                        result = measurement(
                            answer,
                            build_seconds=first.build_seconds,
                            run_seconds=answer["elapsed"],
                            timing=limits.timing,
                        )
                        key = (task.key, verify, first.code)
                        known.keep(key, result)
                        yield first.index, result
                        earlier = known.find(key)
                        for copy in copies[first.code if known.reuse else str(first.index)]:
                            if earlier is None:
                                builds.again(copy)
                            else:
                                yield copy.index, replace(earlier, build_seconds=copy.build_seconds)
                if builds.late:
                    raise OutOfTime

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """See MeasurePool.check."""
        with self._builder.claimed():
            return complete(self._builder.checking(task, candidate))

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """See MeasurePool.checks."""
        jobs_so_far: list[tuple[Task, Schedulable]] = []
        deferred: list[int] = []

        def jobs() -> Iterator[tuple[int, Steps[Checked]]]:
            for place, job in enumerate(candidates):
                jobs_so_far.append(job)
                yield place, self._outcome(*job)

        with self._builder.claimed():
            # One more than there are workers, so that they do not wait for the iterable to create a candidate.
            for place, outcome in together(jobs(), most=self._builder.workers + 1):
                if isinstance(outcome, NoSpaceLeft):
                    deferred.append(place)
                else:
                    yield place, outcome
            for place in deferred:  # the others' files are no longer in use, so there is more disk space
                yield place, complete(self._outcome(*jobs_so_far[place]))

    def _outcome(self, task: Task, candidate: Schedulable) -> Steps[Checked]:
        """Return steps to a check's outcome, including the errors that concern only this task."""
        try:
            return (yield from self._builder.checking(task, candidate))
        except (ReferenceFailed, InvalidModel, OutOfTime) as error:
            return error

    def _run(self, builds: Builds, trial: Trial, request: Message) -> Message | None:
        """Call, check and time a trial, then pause it; return None if the deadline has ended the call."""
        with alone_on_machine():
            answer = builds.run(trial, request, self._builder.limits.run_seconds)
        trial.pause()
        if answer is not None and answer["status"] is Status.OK:
            self._processes.reset_deaths()
        return answer
