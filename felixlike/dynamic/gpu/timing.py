"""Time launches with a measuring pool: each is a candidate of the operator at fixed sizes.

Input: an operator, programs and sizes, a pool (`measure/`). Output: seconds. Candidates are built, run and compared
with float64 in separate processes, and timed in turns with GPU events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.dynamic.bench import Bench, Point, Timings
from felixlike.dynamic.dispatch import Leaf
from felixlike.dynamic.gpu.emit import emit_blocks
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import Operator, read_operator
from felixlike.dynamic.ukernel import Floats
from felixlike.errors import NoUKernels
from felixlike.frontend import Task
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import Measurement, Pool


@dataclass(frozen=True, slots=True)
class Launch:
    """A candidate: a program at the sizes of a task. operator: as read from the function of that task."""

    operator: Operator
    program: BlockProgram

    def module(self) -> Any:
        """Return the kernel with the task's buffers."""
        func = emit_blocks(self.operator, Leaf(self.program))
        return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


class BlockBench(Bench[BlockProgram]):
    """Times programs of thread blocks.

    Args:
        operator: The operator.
        target: The TVM target.
        pool: The measuring pool.
        timings: The timings of the run.
        name: Name of the operator in the store.

    Attributes:
        failed: Programs that failed to build or run, or were wrong at some size, with the reason. They are never
            chosen.
        reports: The compiler's reports of uKernels that were built alone.
    """

    def __init__(
        self, operator: Operator, target: Any, pool: Pool, timings: Timings | None = None, *, name: str = "operator"
    ) -> None:
        super().__init__(operator, target, timings, name=name)
        self.failed: dict[BlockProgram, str] = {}
        self.reports: dict[BlockTile, Kernel] = {}
        self._pool = pool
        self._ran: set[BlockProgram] = set()
        self._operators: dict[tuple[int, ...], Operator] = {}

    @property
    def device(self) -> str:
        """Name of the pool's device."""
        return ", ".join(sorted(self._pool.devices))

    def point(self, program: BlockProgram) -> Point:
        """Return the fields of both tiles; zeros for a missing second one."""
        small = (0,) * len(astuple(program.large)) if program.small is None else astuple(program.small)
        return (*astuple(program.large), *small)

    def measure(self, task: Task, sizes: tuple[int, ...], programs: Sequence[BlockProgram]) -> list[Measurement]:
        """Measure the programs in processes of their own."""
        if sizes not in self._operators:
            operator = read_operator(task.module["main"])
            assert operator is not None  # since it is one with symbolic sizes
            self._operators[sizes] = operator
        return self._pool.measure(task, [Launch(self._operators[sizes], program) for program in programs])

    def note(self, program: BlockProgram, measurement: Measurement) -> None:
        """Take note of programs that ran, of those that failed, and of the compiler's report."""
        if program.small is None and len(measurement.kernels) == 1:
            self.reports[program.large] = measurement.kernels[0]
        if math.isfinite(measurement.seconds):
            self._ran.add(program)
        else:
            self.failed[program] = f"{measurement.status}: {measurement.message}"

    def without_failed(self, programs: Sequence[BlockProgram], seconds: Floats) -> Floats:
        """Return predictions with ∞ for programs that failed, or that contain a uKernel that failed alone.

        Raise NoUKernels if no program is left, or if some failed and none has run yet.
        """
        tiles = {program.large for program in self.failed if program.small is None}
        bad = np.asarray([p in self.failed or not tiles.isdisjoint(p.tiles) for p in programs])
        if bad.all() or (self.failed and not self._ran):
            raise NoUKernels(
                f"{len(self.failed)} programs were tried and all failed: {next(iter(self.failed.values()))}",
                where=str(self.operator.written.name),
                remedy="run `felixlike doctor`, or skip timing with measure=False",
            )
        return np.where(bad[:, None], np.inf, seconds)
