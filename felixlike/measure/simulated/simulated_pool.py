"""A pool that measures nothing: it answers as a simulated device, from what was measured on the real one.

In: a task and candidates. Out: a Measurement each, in milliseconds and without a build, the same in every process.
Search research needs neither hours nor a GPU that way; what it finds is to be confirmed on the real device.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self

import numpy as np

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.deadline import Deadline
from felixlike.errors import InvalidSchedule, UnknownTarget, WorkerFailed
from felixlike.frontend.task import Task
from felixlike.hardware import SIMULATED_NAMES, require_runnable, resolve_target, simulated
from felixlike.measure.candidate import Schedulable, schedulable
from felixlike.measure.interface import Checks, Results
from felixlike.measure.limits import Limits
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.local_pool import Local
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.outcome import refused
from felixlike.measure.simulated.surrogate import Guess, surrogate_of
from felixlike.symbolic import Sketch

_AT_ONCE = 16
"""Candidates that are asked for together: features of several cost less than of one after another."""


class SimulatedPool:
    """A Pool for a simulated device.  A context manager.

    target: its name, as "simulated:h100", or its TVM target.  limits, deadline: of checks; run_seconds and
    build_seconds of simulated candidates are those of the stores.  seed: of the noise; one seed gives a candidate the
    same seconds whenever and however often it is measured.

    A Measurement's build_seconds are what the build would have taken on the machine that the stores are from, its
    run_seconds the calls; no time is spent on either. Answers are not checked (error is None): nothing was computed.
    Raises UnknownTarget for targets of real devices."""

    def __init__(
        self, target: Any, *, limits: Limits | None = None, seed: int = 0, deadline: Deadline | None = None
    ) -> None:
        self._target = resolve_target(target)
        device = simulated(self._target)
        if device is None:
            raise UnknownTarget(
                f"{target} is a real device", where="SimulatedPool", remedy=f"use one of {', '.join(SIMULATED_NAMES)}"
            )
        self._device = device
        self._surrogate = surrogate_of(device)
        self._limits, self._deadline = Limits() if limits is None else limits, deadline
        self._seed = option_checks.seed(seed, where="SimulatedPool")
        self._builder: Builder | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def devices(self) -> frozenset[str]:
        """The simulated device's name, which no real one has."""
        return frozenset([self._device.device])

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Each candidate's place and Measurement, in order.  See MeasurePool.stream; verify and best change nothing."""
        option_checks.of_kind(
            task, Task, "task", where="SimulatedPool", remedy="give one of felixlike.extract_tasks(…)"
        )
        option_checks.of_kind(
            candidates, Iterable, "candidates", where="SimulatedPool", remedy="give a list of candidates"
        )
        if self._closed:
            raise WorkerFailed("the pool is closed", where="SimulatedPool", remedy="open another one")
        return self._stream(task, enumerate(candidates))

    def _stream(self, task: Task, source: Iterator[tuple[int, Schedulable]]) -> Results:
        while some := list(islice(source, _AT_ONCE)):
            for (index, _), found in zip(some, self._measured(task, [c for _, c in some]), strict=True):
                yield index, found

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """The Measurements of the candidates, in their order.  See stream."""
        return [found for _, found in self.stream(task, candidates, verify=verify, best=best)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate for the CPU this process runs on, call it once and compare its answer, as any pool does.
        Raises UnknownTarget for simulated GPUs: there is nothing that could run it."""
        return self._host().check(task, candidate)

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """Check candidates of any tasks, several at a time.  See check."""
        return self._host().checks(candidates)

    def close(self) -> None:
        """End the processes that checks have started.  May be called again."""
        self._closed = True
        if self._builder is not None:
            self._builder.processes.close()

    def _host(self) -> Local:
        require_runnable(self._target)
        if self._builder is None:
            self._builder = Builder(self._target, limits=self._limits, deadline=self._deadline)
        return Local(self._builder)

    def _measured(self, task: Task, candidates: Sequence[Schedulable]) -> list[Measurement]:
        found: dict[int, Measurement] = {}
        schedules: dict[int, Any] = {}
        for place, candidate in enumerate(candidates):
            started = time.monotonic()
            try:
                schedules[place] = _schedule(candidate)
            except InvalidSchedule as refusal:
                found[place] = refused(refusal, time.monotonic() - started)
        guesses = self._surrogate.guesses(task, list(schedules.values()))
        for (place, schedule), guess in zip(schedules.items(), guesses, strict=True):
            found[place] = self._answer(task, schedule.mod, guess)
        return [found[place] for place in range(len(candidates))]

    def _answer(self, task: Task, module: Any, guess: Guess | None) -> Measurement:
        """What the device would have said of a guess."""
        if guess is None:
            return Measurement(Status.BUILD_ERROR, message="simulated: TVM's feature extractor cannot read it")
        if guess.build_seconds >= self._surrogate.most_build:
            seconds = self._limits.build_seconds
            return Measurement(Status.TIMEOUT, message=_stopped(seconds), build_seconds=seconds)
        if guess.seconds >= self._surrogate.most_call:
            seconds = self._limits.run_seconds
            return Measurement(
                Status.TIMEOUT, message=_stopped(seconds), build_seconds=guess.build_seconds, run_seconds=seconds
            )
        seconds = guess.seconds * math.exp(self._noise(task, module))
        timing = self._limits.timing
        return Measurement(
            Status.OK,
            seconds=seconds,
            repeats=(seconds,),
            build_seconds=guess.build_seconds,
            run_seconds=seconds + timing.min_batches * max(timing.batch_seconds, seconds),
        )

    def _noise(self, task: Task, module: Any) -> float:
        """A draw from what measurements of the real device differ by, by workload and candidate, whatever the host."""
        hashes = [_tvm.structural_hash(func) for func in (task.module["main"], module["main"])]
        digest = hashlib.sha256(f"{self._device.name} {self._seed} {hashes}".encode()).digest()
        place = np.random.default_rng(int.from_bytes(digest[:8], "little")).random()
        quantiles = self._surrogate.noise
        return float(np.interp(place, np.linspace(0.0, 1.0, len(quantiles)), quantiles))


def _schedule(candidate: Schedulable) -> Any:
    """A candidate's schedule. TVM takes milliseconds to make one of a module, so a sketch's is taken as it is. Raises
    InvalidSchedule."""
    sketch = getattr(candidate, "sketch", None)
    if isinstance(sketch, Sketch):
        return sketch.schedule(getattr(candidate, "point", ()))
    return _tvm.Schedule(schedulable(candidate).module())


def _stopped(seconds: float) -> str:
    return f"simulated: stopped after {seconds:.1f} s"
