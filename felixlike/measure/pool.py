"""Measure candidates: a builder compiles them, a runner executes them one at a time, checks and times them.

The input is a task and candidates. The output is a Measurement of each, as soon as it exists.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from felixlike._util import option_checks
from felixlike._util.deadline import Deadline
from felixlike.codegen import KernelObject
from felixlike.frontend.task import Task
from felixlike.hardware import require_real, resolve_target
from felixlike.measure.candidate import Schedulable
from felixlike.measure.interface import Checks, Results, Runner
from felixlike.measure.limits import Limits
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.local_pool import Local
from felixlike.measure.measurement import Measurement


class BuilderPool:
    """Pool made of a builder and a runner. It is a context manager and not thread-safe."""

    def __init__(self, builder: Builder, place: Runner) -> None:
        self.limits = builder.limits
        self._builder = builder
        self._place = place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that measure; earlier measurements on them are comparable with new ones.

        For servers, these are the devices that are free at the first call. That call waits for a server and raises the
        errors of `stream`."""
        return self._place.devices

    def close(self) -> None:
        """End all processes and remove the pool's files. Calling it again has no effect."""
        self._builder.processes.close()

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Yield each candidate's index and Measurement as soon as it exists; failures come first.

        Closing the stream early ends all running builds and runs. If a server is lost, its candidate moves to another
        one; a candidate that loses its server twice counts as crashed.

        Args:
            task: The task of the candidates.
            candidates: Candidates to measure. The iterable is read in small batches, so it may create candidates while
                earlier ones are measured.
            verify: Compare each output with the float64 reference.
            best: Seconds per call of the best known schedule. Candidates that are slower than it, or than the best of
                this stream, by `Timing.slow_factor` are timed in few batches.

        Yields:
            The candidate's index in `candidates` and its Measurement.

        Raises:
            ReferenceFailed: The reference cannot be computed. Raised before any candidate is built.
            WorkerFailed: Processes cannot be started, the pool is closed, another stream is open, no server is free for
                longer than `patience`, or the C compiler fails.
            WrongDevice: The device of every server differs from the target.
            InvalidOption: An argument is not a task or a candidate.
            OutOfTime: The pool's deadline passes before all candidates are measured.
        """
        if best is not None:
            best = option_checks.real(best, "best", positive=True, finite=False, where="MeasurePool", unit="seconds")
        task, candidates = _checked(task, candidates)
        return self._place.stream(task, candidates, verify=verify, best=best)

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """Return the Measurements of the candidates, in their order. See `stream` for arguments and errors."""
        results = dict(self.stream(task, candidates, verify=verify, best=best))
        return [results[index] for index in sorted(results)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate, call it once and compare its output with the reference, without timing it.

        The call runs on this machine, even if the pool measures on servers. The seconds of an OK Measurement are nan.
        See `stream` for errors."""
        _checked(task, [candidate])
        return Local(self._builder).check(task, candidate)

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """Check candidates of any tasks as `check` does, a few at a time.

        Args:
            candidates: Pairs of a task and its candidate. The next pair is read when a process is free, so the iterable
                may create candidates while others are checked.

        Yields:
            The pair's index and its Measurement, or the ReferenceFailed or InvalidModel of its task, or OutOfTime.
        """
        checked = ((_checked(task, [candidate])[0], candidate) for task, candidate in candidates)
        return Local(self._builder).checks(checked)


class MeasurePool(BuilderPool):
    """Pool of processes on this machine that measure for one target.

    Building and running alternate in small batches, so that no build disturbs a running candidate. For a GPU, building
    continues while candidates run.

    Args:
        target: Target of the tasks, a name or a TVM target. Its num-cores is the number of threads that a candidate may
            use.
        limits: Limits of one candidate; None for the defaults of `Limits`.
        workers: Number of candidates that are built at a time. None for num-cores, or for the host's cores if the
            target is a GPU.
        waiting: Number of built candidates in a batch. Those close to the fastest one of the batch are timed again,
            interleaved. None for a few for each worker.
        reuse: Give a candidate the Measurement of an earlier one with the same generated code instead of running it.
        deadline: Ends builds and runs that exceed it; None for no limits but those of a candidate.
        objects: Receives the machine code of the kernels that `check` and `checks` find right, by the names of their
            tasks, on a CPU with a C compiler. None to keep no code.

    Raises:
        InvalidOption: An option is out of range.
        UnknownTarget: The target is unknown or a simulated device.
        MissingCompiler: The target is a GPU, but this machine has no CUDA compiler.

    Example:
        >>> with MeasurePool("cpu") as pool:
        ...     measurements = pool.measure(task, [Untuned(task)])
    """

    def __init__(
        self,
        target: Any,
        *,
        limits: Limits | None = None,
        workers: int | None = None,
        waiting: int | None = None,
        reuse: bool = True,
        deadline: Deadline | None = None,
        objects: dict[str, KernelObject] | None = None,
    ) -> None:
        if waiting is not None:
            waiting = option_checks.whole(
                waiting, "waiting", least=1, where="MeasurePool", otherwise="None for a few per worker"
            )
        target = require_real(resolve_target(target), where="MeasurePool")
        builder = Builder(target, limits=limits, workers=workers, reuse=reuse, deadline=deadline, objects=objects)
        super().__init__(builder, Local(builder, waiting=waiting))


def _checked(task: Any, candidates: Any) -> tuple[Task, Iterable[Schedulable]]:
    """Return the arguments; raise InvalidOption if they are not a task and an iterable."""
    option_checks.of_kind(
        task,
        Task,
        "task",
        where="measure",
        remedy="pass a task from felixlike.extract_tasks(model, shapes), then the candidates",
    )
    option_checks.of_kind(candidates, Iterable, "candidates", where="measure", remedy="pass a list of candidates")
    return task, candidates


def measure(task: Task, candidates: Iterable[Schedulable], *, verify: bool = True) -> list[Measurement]:
    """Measure candidates of a task in a pool that is opened for this call, which takes 1–2 s.

    Args:
        task: The task of the candidates.
        candidates: Candidates to measure.
        verify: Compare each output with the float64 reference.

    Returns:
        The Measurements of the candidates, in their order.

    Raises:
        ReferenceFailed, WorkerFailed, InvalidOption: As in `MeasurePool.stream`.
    """
    _checked(task, candidates)
    with MeasurePool(task.target) as pool:
        return pool.measure(task, candidates, verify=verify)
