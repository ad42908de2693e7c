"""Run candidates on this machine: built several at a time, then run one at a time with everything else idle.

In: a task and candidates. Out: a Measurement each. Building and running alternate in small batches.
"""

import selectors
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import islice

from felixlike import tvmlib
from felixlike.errors import InvalidModel, ReferenceFailed
from felixlike.frontend.task import Task
from felixlike.hardware import device_name
from felixlike.hardware.probe import memory_bytes
from felixlike.measure.candidate import Schedulable
from felixlike.measure.evaluator import better
from felixlike.measure.interface import Checked, Checks, Results
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement
from felixlike.measure.steps import Steps, answers, complete, together, watch
from felixlike.measure.trial import Trial
from felixlike.measure.turns import take_turns, without_turn
from felixlike.measure.workshop import Workshop

_WAITING_SHARE = 4
"""Buffers of candidates that wait for their turn take up a quarter of the memory at most."""


class Local:
    """A Place: this machine, where the candidates that a workshop builds run in the processes that built them.

    waiting: as MeasurePool's."""

    def __init__(self, workshop: Workshop, *, waiting: int | None = None) -> None:
        self._workshop = workshop
        self._processes = workshop.processes
        self._batch = waiting or workshop.kind.waiting * workshop.workers

    @property
    def devices(self) -> frozenset[str]:
        """The name of this machine's device."""
        return frozenset([device_name(tvmlib.Target(self._workshop.target))])

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """See MeasurePool.stream."""
        limits, known = self._workshop.limits, self._workshop.earlier
        with self._workshop.claimed():
            examination = self._workshop.examine(task, verify=verify)
            room = max(1, memory_bytes() // _WAITING_SHARE // max(1, examination.bytes))
            source = enumerate(candidates)
            again: list[tuple[int, Schedulable]] = []
            while orders := dict([*again, *islice(source, self._batch)]):
                again = []
                timed: list[tuple[Trial, Message]] = []
                copies: dict[int, list[Trial]] = {}
                built = yield from self._build(orders, examination.bytes)
                for first, *others in _by_code(built, together=known.reuse):
                    if first.lost:  # it was idle when its server died: not its fault
                        self._processes.mourn(first.generation)
                        again += [(trial.index, orders[trial.index]) for trial in (first, *others)]
                        continue
                    for trial in others:
                        self._processes.end(trial)
                    earlier = known.find((task.key, verify, first.code))
                    if earlier is not None:
                        self._processes.end(first)
                        for trial in (first, *others):
                            yield trial.index, replace(earlier, build_seconds=trial.build_seconds)
                        continue
                    copies[first.index] = others
                    request = examination.request(base=limits.tolerance, timing=limits.timing, best=best)
                    timed.append((first, self._run(first, request)))
                    best = better(best, timed[-1][1].get("repeats", ()))
                    for trial in without_turn(timed, limits.timing, room):
                        self._processes.end(trial)
                for first, answer in take_turns(timed, limits.timing, limits.run_seconds):
                    self._processes.end(first)
                    answer = {**answer, "kernels": first.kernels}
                    result = measurement(answer, build_seconds=first.build_seconds, run_seconds=answer["elapsed"])
                    key = (task.key, verify, first.code)
                    known.keep(key, result)
                    yield first.index, result
                    earlier = known.find(key)
                    for trial in copies[first.index]:
                        if earlier is None:
                            again.append((trial.index, orders[trial.index]))
                        else:
                            yield trial.index, replace(earlier, build_seconds=trial.build_seconds)

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """See MeasurePool.check."""
        with self._workshop.claimed():
            return complete(self._workshop.checking(task, candidate))

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """See MeasurePool.checks."""
        with self._workshop.claimed():
            jobs = ((place, self._outcome(*job)) for place, job in enumerate(candidates))
            # One more than can build: whoever makes the candidates is not to keep the workers waiting.
            yield from together(jobs, most=self._workshop.workers + 1)

    def _outcome(self, task: Task, candidate: Schedulable) -> Steps[Checked]:
        try:
            return (yield from self._workshop.checking(task, candidate))
        except (ReferenceFailed, InvalidModel) as error:
            return error

    def _build(
        self, orders: dict[int, Schedulable], memory: int
    ) -> Generator[tuple[int, Measurement], None, list[Trial]]:
        """Build a batch, `workers` at a time.  Yields those that fail, returns those that wait to be run."""
        waiting = deque(orders.items())
        built: list[Trial] = []
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < self._workshop.workers:
                    index, candidate = waiting.popleft()
                    trial = self._workshop.begin(index, candidate, memory)
                    if isinstance(trial, Measurement):
                        yield index, trial
                        continue
                    watch(selector, trial, self._workshop.limits.build_seconds)
                for trial, answer in answers(selector):
                    trial.build_seconds = answer["elapsed"]
                    if answer["status"] is Status.OK:
                        trial.code, trial.kernels = answer["code"], answer["kernels"]
                        built.append(trial)
                        continue
                    self._processes.end(trial)
                    yield trial.index, measurement(answer, build_seconds=trial.build_seconds, run_seconds=0.0)
        return built

    def _run(self, trial: Trial, request: Message) -> Message:
        """Have a trial called, checked and timed; it is paused afterwards."""
        answer = trial.run(request, self._workshop.limits.run_seconds)
        trial.pause()
        if answer["status"] is Status.OK:
            self._processes.praise()
        return answer


def _by_code(trials: Iterable[Trial], *, together: bool) -> list[list[Trial]]:
    """Trials with the same generated code, together if wanted, in the order in which they were built."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.code if together else str(trial.index), []).append(trial)
    return list(found.values())
