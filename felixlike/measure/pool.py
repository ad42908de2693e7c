"""Measure candidates: build several at a time, then run one at a time with everything else idle, check, and time.

In: a task and candidates. Out: a Measurement each, as soon as it exists. Candidates can crash, hang or eat memory
without harm: each lives in a process of its own, forked from a server that has TVM imported.
"""

import contextlib
import os
import selectors
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from felixlike import options, tvmlib
from felixlike.errors import InvalidSchedule, WorkerFailed
from felixlike.frontend.task import Task
from felixlike.hardware import device_name, host_target, kind_of, resolve_target
from felixlike.hardware.probe import memory_bytes, usable_cores
from felixlike.measure.candidate import Schedulable, schedulable
from felixlike.measure.evaluator import better
from felixlike.measure.examination import Examination, unverified, verified
from felixlike.measure.interface import Results
from felixlike.measure.limits import Limits, Timing
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement, refused
from felixlike.measure.server import ForkServer, ServerDied
from felixlike.measure.trial import Trial
from felixlike.measure.turns import take_turns, without_turn

_WAITING_SHARE = 4
"""Buffers of candidates that wait for their turn take up a quarter of the memory at most."""

_MOST_DEATHS = 5
_SAME_CODE = "the same code as an earlier candidate"


class MeasurePool:
    """Processes that measure for one target.  A context manager; not for use by several threads.

    target: of the tasks, TVM's or a name; its num-cores is the number of threads a candidate may use.  workers: how
    many candidates are built at a time; None: num-cores, or the host's cores where the target is a GPU.  Building and
    running alternate in small batches.  reuse: a candidate whose generated code is that of an earlier one gets its
    Measurement instead of being run."""

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
        kind = kind_of(target)
        cores = int(target.attrs.get("num-cores", 1)) if kind.on_host else usable_cores()
        self.limits = Limits() if limits is None else limits
        self._target = str(target)
        self._host = self._target if kind.on_host else str(host_target())
        self._batch = kind.waiting * (workers or cores)
        self._workers = workers or cores
        self._examinations: dict[tuple[str, bool], Examination] = {}
        self._reuse = reuse
        self._measured: dict[tuple[str, bool, str], Measurement] = {}  # by task, verified or not, code
        self._trials: set[Trial] = set()
        self._deaths = 0
        self._mourned = 0  # the generation of the latest server whose death was counted
        self._busy = False
        self._directory = Path(tempfile.mkdtemp(prefix="felixlike-measure-"))
        self._server = ForkServer(self._directory, threads=cores)
        self._finalizer = weakref.finalize(self, _dispose, self._server, self._directory, os.getpid())
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that measure: earlier measurements on these can be compared with new ones."""
        return frozenset([device_name(tvmlib.Target(self._target))])

    def close(self) -> None:
        """End all processes and remove the pool's files.  May be called again."""
        self._finalizer()

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Each candidate's place and Measurement, as soon as it exists: not in order, since failures come first.

        candidates: asked for in small batches, so they may be made while earlier ones are measured.  verify: compare
        each answer with the float64 reference.  best: seconds per call of the best schedule known; candidates far
        behind it, or behind the best of this stream, are timed once only.  Closing the stream early ends what is
        under way.  Raises ReferenceFailed before any candidate is built, WorkerFailed if processes cannot be
        started, if the pool is closed or if another stream is open, InvalidOption for what is no task or candidate."""
        if best is not None:
            best = options.real(best, "best", positive=True, finite=False, where="MeasurePool", unit="seconds")
        return self._stream(task, candidates, verify=verify, best=best, timing=self.limits.timing)

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """The Measurements of the candidates, in their order.  See stream."""
        found = dict(self.stream(task, candidates, verify=verify, best=best))
        return [found[index] for index in sorted(found)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate, call it once and compare its answer, untimed: if OK its seconds are nan.  See stream."""
        with contextlib.closing(self._stream(task, [candidate], verify=True, best=None, timing=None)) as results:
            return next(results)[1]

    def _stream(
        self,
        task: Task,
        candidates: Iterable[Schedulable],
        *,
        verify: bool,
        best: float | None,
        timing: Timing | None,
    ) -> Results:
        task, candidates = _checked(task, candidates)
        self._claim()
        try:
            examination = self._examine(task, verify=verify)
            room = max(1, memory_bytes() // _WAITING_SHARE // max(1, examination.bytes))
            source = enumerate(candidates)
            again: list[tuple[int, Schedulable]] = []
            while orders := dict([*again, *islice(source, self._batch)]):
                again = []
                timed: list[tuple[Trial, Message]] = []
                copies: dict[int, list[Trial]] = {}
                built = yield from self._build(orders, examination.bytes)
                for first, *others in _by_code(built, together=self._reuse and timing is not None):
                    if first.lost:  # it was idle when its server died: not its fault
                        self._mourn(first.generation)
                        again += [(trial.index, orders[trial.index]) for trial in (first, *others)]
                        continue
                    for trial in others:
                        self._close(trial)
                    earlier = self._earlier((task.key, verify, first.code)) if timing is not None else None
                    if earlier is not None:
                        self._close(first)
                        for trial in (first, *others):
                            yield trial.index, replace(earlier, build_seconds=trial.build_seconds)
                        continue
                    copies[first.index] = others
                    request = examination.request(base=self.limits.tolerance, timing=timing, best=best)
                    timed.append((first, self._run(first, request)))
                    best = better(best, timed[-1][1].get("repeats", ()))
                    for trial in without_turn(timed, self.limits.timing, room):
                        self._close(trial)
                for first, answer in take_turns(timed, self.limits.timing, self.limits.run_seconds):
                    self._close(first)
                    result = measurement(answer, build_seconds=first.build_seconds, run_seconds=answer["elapsed"])
                    key = (task.key, verify, first.code)
                    if timing is not None:
                        self._remember(key, result)
                    yield first.index, result
                    earlier = self._earlier(key)
                    for trial in copies[first.index]:
                        if earlier is None:
                            again.append((trial.index, orders[trial.index]))
                        else:
                            yield trial.index, replace(earlier, build_seconds=trial.build_seconds)
        finally:
            self._end()

    def _end(self) -> None:
        """End what a stream has under way, and let another begin."""
        for trial in tuple(self._trials):
            self._close(trial)
        self._busy = False

    def _run(self, trial: Trial, request: Message) -> Message:
        """Have a trial called, checked and timed; it is paused afterwards."""
        answer = trial.run(request, self.limits.run_seconds)
        trial.pause()
        if answer["status"] is Status.OK:
            self._deaths = 0
        return answer

    def _earlier(self, key: tuple[str, bool, str]) -> Measurement | None:
        """What came of an earlier candidate with this code; None if there was none."""
        found = self._measured.get(key) if self._reuse else None
        return None if found is None else replace(found, run_seconds=0.0)

    def _remember(self, key: tuple[str, bool, str], result: Measurement) -> None:
        """Keep what another candidate with this code would only repeat: a time or a wrong answer, not an accident."""
        if result.repeats or result.status is Status.WRONG:
            self._measured[key] = replace(result, message=result.message or _SAME_CODE)

    def _claim(self) -> None:
        if not self._finalizer.alive:
            raise WorkerFailed("the pool is closed", where="MeasurePool", remedy="open another one")
        if self._busy:
            raise WorkerFailed(
                "another stream of this pool is still open",
                where="MeasurePool",
                remedy="read it to its end or close it: two at a time would disturb each other's timings",
            )
        self._busy = True

    def _build(
        self, orders: dict[int, Schedulable], memory: int
    ) -> Generator[tuple[int, Measurement], None, list[Trial]]:
        """Build a batch, `workers` at a time.  Yields those that fail, returns those that wait to be run."""
        waiting = deque(orders.items())
        built: list[Trial] = []
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < self._workers:
                    index, candidate = waiting.popleft()
                    started = time.monotonic()
                    try:
                        module = schedulable(candidate).module()
                    except InvalidSchedule as refusal:
                        yield index, refused(refusal, time.monotonic() - started)
                        continue
                    trial = self._open(index, module, memory)
                    selector.register(trial.channel, selectors.EVENT_READ, trial)
                for trial, answer in _answers(selector, self.limits.build_seconds):
                    trial.build_seconds = answer["elapsed"]
                    if answer["status"] is Status.OK:
                        trial.code = answer["code"]
                        built.append(trial)
                        continue
                    self._close(trial)
                    yield trial.index, measurement(answer, build_seconds=trial.build_seconds, run_seconds=0.0)
        return built

    def _examine(self, task: Task, *, verify: bool) -> Examination:
        """The task's inputs and answers, made at the first call."""
        key = (task.key, verify)
        if key not in self._examinations:
            home = self._directory / f"{task.key}-{'verified' if verify else 'unverified'}"
            self._examinations[key] = verified(task, home, self._run_alone) if verify else unverified(task, home)
        return self._examinations[key]

    def _run_alone(self, module: Any, memory: int, request: Message) -> Message:
        """Build and run a module on the host under the reference's limits; the answer to the run request, or the
        failure."""
        seconds = self.limits.reference_seconds
        while True:
            trial = self._open(0, module, memory, target=self._host)
            try:
                answer = trial.wait(seconds)
                if answer["status"] is Status.OK:
                    answer = trial.run(request, seconds)
            finally:
                self._close(trial)
            if not trial.lost:
                return answer
            self._mourn(trial.generation)

    def _open(self, index: int, module: Any, memory: int, *, target: str | None = None, **extra: Any) -> Trial:
        """A process that builds this module.  extra: more entries of its request."""
        request = {
            "module": str(tvmlib.ir.save_json(module)),
            "target": self._target if target is None else target,
            "memory": self.limits.memory_bytes + memory,
        }
        return self._start(index, {**request, **extra})

    def _start(self, index: int, request: Message) -> Trial:
        """A process that serves this request, from a new server if the old one is gone."""
        while True:
            try:
                trial = Trial(self._server, index, request)
            except ServerDied:
                self._mourn(self._server.generation)
                continue
            self._trials.add(trial)
            return trial

    def _mourn(self, generation: int) -> None:
        """Count a server's death, once, however many trials are lost with it; raise WorkerFailed if that is all that
        happens."""
        if generation <= self._mourned:
            return
        self._mourned = generation
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise WorkerFailed(
                f"the measuring process died {self._deaths} times without a result in between",
                where="MeasurePool",
                remedy="see what ends it: a limit on this user's processes, or the machine's memory",
            )

    def _close(self, trial: Trial) -> None:
        trial.close()
        self._trials.discard(trial)


def _checked(task: Any, candidates: Any) -> tuple[Task, Iterable[Schedulable]]:
    options.of_kind(
        task, Task, "task", where="measure", remedy="give one of felixlike.extract_tasks(model, shapes), and candidates"
    )
    options.of_kind(candidates, Iterable, "candidates", where="measure", remedy="give a list of candidates")
    return task, candidates


def _by_code(trials: Iterable[Trial], *, together: bool) -> list[list[Trial]]:
    """Trials with the same generated code, together if wanted, in the order in which they were built."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.code if together else str(trial.index), []).append(trial)
    return list(found.values())


def _answers(selector: selectors.BaseSelector, limit: float) -> list[tuple[Trial, Message]]:
    """Wait until a trial under way has answered or is overdue; those that are, with their answers.

    Answers are read before anyone is called late: a stream's caller may have been away for longer than the limit."""
    under_way: list[Trial] = [key.data for key in selector.get_map().values()]
    if not under_way:
        return []
    patience = limit - max(trial.elapsed for trial in under_way)
    ready = {key.data for key, _ in selector.select(max(0.0, patience))}
    finished = []
    for trial in under_way:
        if trial in ready:
            selector.unregister(trial.channel)
            finished.append((trial, trial.answer()))
        elif trial.elapsed >= limit:
            selector.unregister(trial.channel)
            finished.append((trial, trial.expire()))
    return finished


def _dispose(server: ForkServer, directory: Path, owner: int) -> None:
    """End what a pool has started, unless this is a forked copy of its process."""
    if os.getpid() == owner:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


def measure(task: Task, candidates: Iterable[Schedulable], *, verify: bool = True) -> list[Measurement]:
    """The Measurements of a task's candidates, in their order, by a pool opened for this call (1–2 s).

    verify: compare each answer with the float64 reference.  Raises as MeasurePool.stream does."""
    _checked(task, candidates)
    with MeasurePool(task.target) as pool:
        return pool.measure(task, candidates, verify=verify)
