"""Measure candidates: a builder builds them, a place runs them, one at a time each, checks and times them.

In: a task and candidates. Out: a Measurement each, as soon as it exists.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from felixlike._util import option_checks
from felixlike._util.deadline import Deadline
from felixlike.frontend.task import Task
from felixlike.hardware import require_real, resolve_target
from felixlike.measure.candidate import Schedulable
from felixlike.measure.interface import Checks, Results, Runner
from felixlike.measure.limits import Limits
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.local_pool import Local
from felixlike.measure.measurement import Measurement


class WorkshopPool:
    """A Pool made of a builder and a place.  A context manager; not for use by several threads."""

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
        """Names of the devices that measure: earlier measurements on these can be compared with new ones.  Of servers,
        those that are free at the first call, which waits for one and raises as `stream` does."""
        return self._place.devices

    def close(self) -> None:
        """End all processes and remove the pool's files.  May be called again."""
        self._builder.processes.close()

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Each candidate's place and Measurement, as soon as it exists: not in order, since failures come first.

        candidates: asked for in small batches, so they may be made while earlier ones are measured.  verify: compare
        each answer with the float64 reference.  best: seconds per call of the best schedule known; candidates far
        behind it, or behind the best of this stream, are timed once only.  Closing the stream early ends what is
        under way.  Raises ReferenceFailed before any candidate is built, WorkerFailed if processes cannot be
        started, if the pool is closed or if another stream is open, InvalidOption for what is no task or candidate,
        OutOfTime if the pool's deadline passes before all are measured.

        On servers, a candidate whose server is lost goes to another; the second time it has crashed.  Raises also
        WrongDevice if the device of every server differs from the target, WorkerFailed if there is no server for longer
        than `patience`, or a C compiler that fails."""
        if best is not None:
            best = option_checks.real(best, "best", positive=True, finite=False, where="MeasurePool", unit="seconds")
        task, candidates = _checked(task, candidates)
        return self._place.stream(task, candidates, verify=verify, best=best)

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """The Measurements of the candidates, in their order.  See stream."""
        found = dict(self.stream(task, candidates, verify=verify, best=best))
        return [found[index] for index in sorted(found)]

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate, call it once on this machine, wherever others run, and compare its answer, untimed: if OK
        its seconds are nan.  See stream."""
        _checked(task, [candidate])
        return Local(self._builder).check(task, candidate)

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """Check candidates of any tasks as `check` does, a few at a time: each one's place and Measurement, or its
        task's ReferenceFailed or InvalidModel, or OutOfTime, as soon as it exists.

        candidates: asked for when there is a process for the next, so they may be made while others are checked."""
        checked = ((_checked(task, [candidate])[0], candidate) for task, candidate in candidates)
        return Local(self._builder).checks(checked)


class MeasurePool(WorkshopPool):
    """Processes on this machine that measure for one target.

    target: of the tasks, TVM's or a name; its num-cores is the number of threads a candidate may use.  workers: how
    many candidates are built at a time; None: num-cores, or the host's cores where the target is a GPU.  Building and
    running alternate in small batches; for a GPU, building goes on meanwhile.  waiting: how many built candidates such
    a batch has, of which those that are near its best one are timed in turns; None: a few for each worker.  reuse: a
    candidate whose generated code is that of an earlier one gets its Measurement instead of being run.  deadline: ends
    what builds or runs for longer; None for no other limits than those of a candidate."""

    def __init__(
        self,
        target: Any,
        *,
        limits: Limits | None = None,
        workers: int | None = None,
        waiting: int | None = None,
        reuse: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        if waiting is not None:
            waiting = option_checks.whole(
                waiting, "waiting", least=1, where="MeasurePool", otherwise="None for a few for each worker"
            )
        target = require_real(resolve_target(target), where="MeasurePool")
        builder = Builder(target, limits=limits, workers=workers, reuse=reuse, deadline=deadline)
        super().__init__(builder, Local(builder, waiting=waiting))


def _checked(task: Any, candidates: Any) -> tuple[Task, Iterable[Schedulable]]:
    option_checks.of_kind(
        task, Task, "task", where="measure", remedy="give one of felixlike.extract_tasks(model, shapes), and candidates"
    )
    option_checks.of_kind(candidates, Iterable, "candidates", where="measure", remedy="give a list of candidates")
    return task, candidates


def measure(task: Task, candidates: Iterable[Schedulable], *, verify: bool = True) -> list[Measurement]:
    """The Measurements of a task's candidates, in their order, by a pool opened for this call (1–2 s).

    verify: compare each answer with the float64 reference.  Raises as MeasurePool.stream does."""
    _checked(task, candidates)
    with MeasurePool(task.target) as pool:
        return pool.measure(task, candidates, verify=verify)
