"""Time launches with a measuring pool: each is a candidate of the operator at fixed sizes.

Input: an operator, programs and sizes, a pool (`measure/`). Output: seconds. Candidates are built, run and compared
with float64 in separate processes, and timed in turns with GPU events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.dynamic.dispatch import Leaf
from felixlike.dynamic.gpu.emit import emit_blocks
from felixlike.dynamic.gpu.tile import BlockProgram
from felixlike.dynamic.operator import Operator, read_operator
from felixlike.dynamic.ukernel import Floats
from felixlike.errors import NoUKernels
from felixlike.frontend import Task, make_task
from felixlike.frontend.constants import noted_constants
from felixlike.measure import Pool

BlockTrial = tuple[BlockProgram, tuple[int, ...]]
"""(program, sizes of the symbols)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A candidate: a program at the sizes of a task. operator: as read from the function of that task."""

    operator: Operator
    program: BlockProgram

    def module(self) -> Any:
        """Return the kernel with the task's buffers."""
        func = emit_blocks(self.operator, Leaf(self.program))
        return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


class BlockBench:
    """Times programs of an operator.

    Attributes:
        operator: The operator.
        target: The TVM target.
        pool: The measuring pool.
        measured: Number of timings so far.
        failed: Programs that failed to build or run, or were wrong at some size, with the reason. They are never
            chosen.
    """

    def __init__(self, operator: Operator, target: Any, pool: Pool) -> None:
        self.operator, self.target, self.pool = operator, target, pool
        self.measured = 0
        self.failed: dict[BlockProgram, str] = {}
        self._ran: set[BlockProgram] = set()
        self._tasks: dict[tuple[int, ...], tuple[Task, Operator]] = {}

    def seconds(self, trials: Sequence[BlockTrial]) -> Floats:
        """Time each trial: float64[trials], ∞ for failures."""
        times = np.full(len(trials), np.inf)
        for sizes in dict.fromkeys(sizes for _, sizes in trials):
            indices = [n for n, trial in enumerate(trials) if trial[1] == sizes]
            task, operator = self._at(sizes)
            measured = self.pool.measure(task, [Launch(operator, trials[n][0]) for n in indices])
            for n, answer in zip(indices, measured, strict=True):
                times[n] = answer.seconds
                if math.isfinite(answer.seconds):
                    self._ran.add(trials[n][0])
                else:
                    self.failed[trials[n][0]] = f"{answer.status}: {answer.message}"
            self.measured += len(indices)
        return times

    def without_failed(self, programs: Sequence[BlockProgram], seconds: Floats) -> Floats:
        """Return predictions with ∞ for programs that failed, or that contain a uKernel that failed alone.

        Raise NoUKernels if no program is left or none has run yet.
        """
        tiles = {program.large for program in self.failed if program.small is None}
        bad = np.asarray([p in self.failed or not tiles.isdisjoint(p.tiles) for p in programs])
        if bad.all() or len(self._ran) == 0:
            raise NoUKernels(
                f"{len(self.failed)} programs were tried and all failed: {next(iter(self.failed.values()))}",
                where=str(self.operator.written.name),
                remedy="run `felixlike doctor`, or skip timing with measure=False",
            )
        return np.where(bad[:, None], np.inf, seconds)

    def _at(self, sizes: tuple[int, ...]) -> tuple[Task, Operator]:
        """Return the operator at fixed sizes: as a task, and as read from that task."""
        if sizes not in self._tasks:
            values = dict(zip(self.operator.symbols, sizes, strict=True))
            func = _tvm.substituted(self.operator.func, values)
            name = "x".join(map(str, sizes))
            task = make_task(func, self.target, name=f"sizes {name}", constants=noted_constants(func))
            operator = read_operator(task.module["main"])
            assert operator is not None  # since it is one with symbolic sizes
            self._tasks[sizes] = task, operator
        return self._tasks[sizes]
