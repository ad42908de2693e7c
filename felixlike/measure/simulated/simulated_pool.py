"""Simulate measurements: a pool predicts latencies with a surrogate that is fitted to measurements of a real device.

The input is a task and candidates. The output is a Measurement of each, in milliseconds and without a build, equal in
every process. Research on search algorithms needs neither hours nor a GPU this way. Confirm its results on the real
device.
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
"""Candidates whose features are extracted in one call, which is faster than one call for each; chosen by hand."""


class SimulatedPool:
    """Pool for a simulated device. It is a context manager.

    A Measurement's `build_seconds` is the predicted time of the build on the machine that measured the training data,
    its `run_seconds` that of the calls; neither time is spent. Outputs are not computed and not checked (`error` is
    None).

    Args:
        target: Name of the device, for example "simulated:h100", or its TVM target.
        limits: Limits of checks, and the seconds of simulated timeouts; None for the defaults of `Limits`.
        seed: Seed of the noise. With one seed, a candidate always has the same seconds.
        deadline: Ends checks that exceed it; None for no deadline.

    Raises:
        UnknownTarget: The target is a real device.

    Example:
        >>> with SimulatedPool("simulated:h100") as pool:
        ...     measurements = pool.measure(task, candidates)
    """

    def __init__(
        self, target: Any, *, limits: Limits | None = None, seed: int = 0, deadline: Deadline | None = None
    ) -> None:
        self._target = resolve_target(target)
        device = simulated(self._target)
        if device is None:
            raise UnknownTarget(
                f"{target} is not a simulated target",
                where="SimulatedPool",
                remedy=f"use one of {', '.join(SIMULATED_NAMES)}",
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
        """The simulated device's name, which differs from that of any real device."""
        return frozenset([self._device.device])

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Yield each candidate's index and Measurement, in order.

        `verify` and `best` have no effect. See `MeasurePool.stream`.

        Raises:
            InvalidOption: An argument is not a task or a candidate.
            WorkerFailed: The pool is closed.
        """
        option_checks.of_kind(
            task, Task, "task", where="SimulatedPool", remedy="pass a task from felixlike.extract_tasks(…)"
        )
        option_checks.of_kind(
            candidates, Iterable, "candidates", where="SimulatedPool", remedy="pass a list of candidates"
        )
        if self._closed:
            raise WorkerFailed("the pool is closed", where="SimulatedPool", remedy="open a new pool")
        return self._stream(task, enumerate(candidates))

    def _stream(self, task: Task, source: Iterator[tuple[int, Schedulable]]) -> Results:
        """Yield the Measurements of the candidates, predicted _AT_ONCE at a time."""
        while some := list(islice(source, _AT_ONCE)):
            for (index, _), result in zip(some, self._measured(task, [c for _, c in some]), strict=True):
                yield index, result

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """Return the Measurements of the candidates, in their order. See `stream`."""
        return [result for _, result in self.stream(task, candidates, verify=verify, best=best)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate for this machine's CPU, call it once and compare its output with the reference.

        Raises:
            UnknownTarget: The simulated device is a GPU, whose code cannot run here.
        """
        return self._host().check(task, candidate)

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """Check candidates of any tasks, several at a time. See `check` and `MeasurePool.checks`."""
        return self._host().checks(candidates)

    def close(self) -> None:
        """End the processes that checks have started. Calling it again has no effect."""
        self._closed = True
        if self._builder is not None:
            self._builder.processes.close()

    def _host(self) -> Local:
        """Return the runner for checks; raise UnknownTarget if this machine cannot run the target's code."""
        require_runnable(self._target)
        if self._builder is None:
            self._builder = Builder(self._target, limits=self._limits, deadline=self._deadline)
        return Local(self._builder)

    def _measured(self, task: Task, candidates: Sequence[Schedulable]) -> list[Measurement]:
        """Return the simulated Measurements of the candidates."""
        measurements: dict[int, Measurement] = {}
        schedules: dict[int, Any] = {}
        for place, candidate in enumerate(candidates):
            started = time.monotonic()
            try:
                schedules[place] = _schedule(candidate)
            except InvalidSchedule as refusal:
                measurements[place] = refused(refusal, time.monotonic() - started)
        guesses = self._surrogate.guesses(task, list(schedules.values()))
        for (place, schedule), guess in zip(schedules.items(), guesses, strict=True):
            measurements[place] = self._answer(task, schedule.mod, guess)
        return [measurements[place] for place in range(len(candidates))]

    def _answer(self, task: Task, module: Any, guess: Guess | None) -> Measurement:
        """Return the Measurement of a prediction."""
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
        batch = timing.batch_calls * seconds if timing.batch_calls else max(timing.batch_seconds, seconds)
        return Measurement(
            Status.OK,
            seconds=seconds,
            repeats=(seconds,),
            build_seconds=guess.build_seconds,
            run_seconds=seconds + timing.min_batches * batch,
        )

    def _noise(self, task: Task, module: Any) -> float:
        """Draw a log factor from the real device's noise; it depends on device, seed, workload and candidate only."""
        hashes = [_tvm.structural_hash(func) for func in (task.module["main"], module["main"])]
        digest = hashlib.sha256(f"{self._device.name} {self._seed} {hashes}".encode()).digest()
        rank = np.random.default_rng(int.from_bytes(digest[:8], "little")).random()
        quantiles = self._surrogate.noise
        return float(np.interp(rank, np.linspace(0.0, 1.0, len(quantiles)), quantiles))


def _schedule(candidate: Schedulable) -> Any:
    """Return a candidate's schedule; raise InvalidSchedule.

    A sketch's own schedule is used, since TVM takes milliseconds to create one from a module."""
    sketch = getattr(candidate, "sketch", None)
    if isinstance(sketch, Sketch):
        return sketch.schedule(getattr(candidate, "point", ()))
    return _tvm.Schedule(schedulable(candidate).module())


def _stopped(seconds: float) -> str:
    """Return the message of a simulated timeout."""
    return f"simulated: stopped after {seconds:.1f} s"
