"""Build candidates and the reference data of their tasks, for runs on this machine and on servers.

The input is tasks and candidates. The output is processes that build the candidates, and a ReferenceData for each task.
Each candidate has a process of its own, forked from a server that has TVM imported, so a candidate may crash, hang or
exhaust memory without affecting others.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.deadline import Deadline, OutOfTime
from felixlike._util.spent import on
from felixlike.codegen import KernelObject, require_toolchain
from felixlike.errors import InvalidSchedule, WorkerFailed
from felixlike.frontend.task import Task
from felixlike.hardware import c_compiler, gpu_at_hand, host_target, kind_of, quickly_compiled, resolve_target
from felixlike.hardware.probe import usable_cores
from felixlike.measure.candidate import Schedulable, schedulable
from felixlike.measure.check.reference import in_quick_order, in_threads, is_large
from felixlike.measure.limits import Limits
from felixlike.measure.local.code_cache import CodeCache
from felixlike.measure.local.processes import Processes
from felixlike.measure.local.reference_cache import ReferenceCache
from felixlike.measure.local.reference_data import ReferenceData
from felixlike.measure.local.steps import Steps
from felixlike.measure.local.trial import Trial, in_time
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement, refused


class Builder:
    """Builder of candidates for one target, for one user at a time (see `claimed`).

    Args:
        target, limits, workers, reuse, deadline, objects: See `MeasurePool`.

    Attributes:
        kind: Kind of the target.
        processes: All processes that the builder has started.
        code_cache: Measurements of earlier candidates by their generated code.
    """

    def __init__(
        self,
        target: Any,
        *,
        limits: Limits | None = None,
        workers: int | None = None,
        reuse: bool = True,
        deadline: Deadline | None = None,
        objects: dict[str, KernelObject] | None = None,
    ) -> None:
        target = resolve_target(target)
        if workers is not None:
            workers = option_checks.whole(
                workers, "workers", least=1, where="MeasurePool", otherwise="None for the number of cores"
            )
        if limits is not None:
            option_checks.of_kind(
                limits, Limits, "limits", where="MeasurePool", remedy="pass measure.Limits(…), or None"
            )
        self.kind = kind_of(target)
        if not self.kind.on_host:
            require_toolchain()  # one error now instead of a build error of every candidate
        cores = int(target.attrs.get("num-cores", 1)) if self.kind.on_host else usable_cores()
        self.limits = Limits() if limits is None else limits
        self.deadline = Deadline() if deadline is None else deadline
        self.target = str(target)
        self.workers = workers or min(cores, usable_cores())  # builds run on this machine, also for other targets
        self.code_cache = CodeCache(reuse=reuse)
        self._has_gpu = not self.kind.on_host and (gpu_at_hand() or ("", ""))[1] == str(target.attrs["arch"])
        self._host = target if self.kind.on_host else host_target()
        self._objects = objects if self.kind.on_host and c_compiler() is not None else None
        self._object_numbers = itertools.count()
        self._busy = False
        self.processes = Processes(threads=cores)
        self._references = ReferenceCache(self.processes.directory, self._reference)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Claim the builder for one user; all running processes end with the block.

        Raises WorkerFailed if the builder is closed or claimed already."""
        if self.processes.closed:
            raise WorkerFailed("the pool is closed", where="MeasurePool", remedy="open a new pool")
        if self._busy:
            raise WorkerFailed(
                "another stream of this pool is still open",
                where="MeasurePool",
                remedy="read it to its end or close it: concurrent streams would disturb each other's timings",
            )
        self._busy = True
        try:
            yield
        finally:
            self.processes.end_all()
            self._busy = False

    def reference_for(self, task: Task, *, verify: bool) -> AbstractContextManager[ReferenceData]:
        """Provide a task's reference data, whose files exist during a block; raise ReferenceFailed or OutOfTime."""
        return self._references.using(task, verify=verify)

    def begin(self, index: int, candidate: Schedulable, memory: int, **extra: Any) -> Trial | Measurement:
        """Start to build a candidate; return its process, or its Measurement if it has no module. See `build`."""
        started = time.monotonic()
        try:
            with on("scheduling"):
                module = schedulable(candidate).module()
        except InvalidSchedule as refusal:
            return refused(refusal, time.monotonic() - started)
        return self.build(index, module, memory, **extra)

    def build(self, index: int, module: Any, memory: int, *, target: str | None = None, **extra: Any) -> Trial:
        """Start a process that builds a module.

        Args:
            index: Index of its Trial.
            module: The IRModule.
            memory: Size of its buffers, bytes.
            target: TVM's text of the target; None for the builder's.
            extra: Additional entries of the process's request.

        Raises:
            WorkerFailed: The process cannot be started.
        """
        with on("sending"):
            request = {
                "module": str(_tvm.ir.save_json(module)),
                "target": self.target if target is None else target,
                "memory": self.limits.memory_bytes + memory,
            }
            return self.processes.begin(index, {**request, **extra})

    def checking(self, task: Task, candidate: Schedulable) -> Steps[Measurement]:
        """Return steps that build a candidate, call it once here and compare its output with the reference.

        The comparison is skipped (`error` is None) if the deadline passes before the reference is computed. Raises
        ReferenceFailed, WorkerFailed, OutOfTime."""
        verify = True
        try:
            reference_data = yield from self._references.making(task, verify=True)
        except OutOfTime:
            verify = False
            reference_data = yield from self._references.making(task, verify=False)
        try:
            return (yield from self._checking(task, candidate, reference_data))
        finally:
            self._references.release(task, verify=verify)

    def _checking(self, task: Task, candidate: Schedulable, reference_data: ReferenceData) -> Steps[Measurement]:
        """Return steps that build a candidate, call it once and check it; repeat them if the fork server dies."""
        request = reference_data.request(base=self.limits.tolerance, timing=None, best=None)
        path = self.processes.directory / f"kernel{next(self._object_numbers)}.o"
        extra = {} if self._objects is None else {"path": str(path), "name": task.name, "compiler": c_compiler()}
        while True:
            trial = self.begin(0, candidate, reference_data.bytes, **({"object": extra} if extra else {}))
            if isinstance(trial, Measurement):
                return trial
            elapsed = 0.0
            try:
                answer = yield from self._timely(trial, self.limits.build_seconds)
                trial.build_seconds = answer["elapsed"]
                if answer["status"] is Status.OK:
                    trial.send(request)
                    answer = yield from self._timely(trial, self.limits.run_seconds)
                    elapsed = answer["elapsed"]
                if answer["status"] is Status.OK and self._objects is not None:
                    self._objects[task.name] = KernelObject(trial.request["module"], path.read_bytes())
            finally:
                self.processes.end(trial, wait=False)
                path.unlink(missing_ok=True)
                path.with_suffix(".so").unlink(missing_ok=True)
            if not trial.lost:
                self.processes.reset_deaths()
                return measurement(answer, build_seconds=trial.build_seconds, run_seconds=elapsed)
            self.processes.record_death(trial.generation)

    def _timely(self, trial: Trial, limit: float) -> Steps[Message]:
        """Return steps to a trial's answer; raise OutOfTime if the deadline passes before the candidate's limit."""
        return in_time((yield trial, self.deadline.limit(limit)), limit)

    def _reference(self, module: Any, memory: int, request: Message) -> Steps[Message]:
        """Return steps that run an unscheduled module (see `_run_alone`).

        It runs on the GPU if the target's GPU is in this machine and the module is large enough; otherwise, or if the
        GPU fails, for example for lack of memory, it runs on the CPU."""
        scheduled = in_threads(module, _tvm.Target(self.target)) if self._has_gpu else None
        if scheduled is not None:
            answer = yield from self._run_alone(scheduled, self.target, memory, request)
            if answer["status"] is Status.OK:
                return answer
        plain = quickly_compiled(self._host, vectorized=is_large(module))
        return (yield from self._run_alone(in_quick_order(module), str(plain), memory, request))

    def _run_alone(self, module: Any, target: str, memory: int, request: Message) -> Steps[Message]:
        """Return steps that build and run a module under the reference's time limit, and return its last answer.

        Raises OutOfTime."""
        seconds = self.limits.reference_seconds
        while True:
            trial = self.build(0, module, memory, target=target)
            try:
                answer = yield from self._timely(trial, seconds)
                if answer["status"] is Status.OK:
                    trial.send(request)
                    answer = yield from self._timely(trial, seconds)
            finally:
                self.processes.end(trial, wait=False)
            if not trial.lost:
                return answer
            self.processes.record_death(trial.generation)
