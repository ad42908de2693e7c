"""What launches really take: each is a candidate like any other, of the operator at fixed sizes.

In: an operator, programs and sizes, a pool (`measure/`). Out: seconds. So they are built, run and compared with float64
in processes of their own, and timed in turns with GPU events.
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
    """A candidate: a program at the sizes of a task.  operator: of that task's function."""

    operator: Operator
    program: BlockProgram

    def module(self) -> Any:
        """The kernel with the task's buffers."""
        func = emit_blocks(self.operator, Leaf(self.program))
        return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


class BlockBench:
    """Times programs of an operator.  measured: how many timings it has taken.  failed: programs that did not build, or
    run, or were wrong at some size: they are not to be chosen for any."""

    def __init__(self, operator: Operator, target: Any, pool: Pool) -> None:
        self.operator, self.target, self.pool = operator, target, pool
        self.measured = 0
        self.failed: dict[BlockProgram, str] = {}
        self._ran: set[BlockProgram] = set()
        self._tasks: dict[tuple[int, ...], tuple[Task, Operator]] = {}

    def seconds(self, trials: Sequence[BlockTrial]) -> Floats:
        """What each takes, float64[trials]; ∞ for what failed."""
        found = np.full(len(trials), np.inf)
        for sizes in dict.fromkeys(sizes for _, sizes in trials):
            own = [n for n, trial in enumerate(trials) if trial[1] == sizes]
            task, operator = self._at(sizes)
            measured = self.pool.measure(task, [Launch(operator, trials[n][0]) for n in own])
            for n, answer in zip(own, measured, strict=True):
                found[n] = answer.seconds
                if math.isfinite(answer.seconds):
                    self._ran.add(trials[n][0])
                else:
                    self.failed[trials[n][0]] = f"{answer.status}: {answer.message}"
            self.measured += len(own)
        return found

    def without_failed(self, programs: Sequence[BlockProgram], seconds: Floats) -> Floats:
        """Predictions with ∞ for programs that failed, or have a uKernel that failed by itself.  Raises NoUKernels if
        that leaves none, or nothing has run yet."""
        tiles = {program.large for program in self.failed if program.small is None}
        bad = np.asarray([p in self.failed or not tiles.isdisjoint(p.tiles) for p in programs])
        if bad.all() or len(self._ran) == 0:
            raise NoUKernels(
                f"none of {len(self.failed)} programs that were tried runs: {next(iter(self.failed.values()))}",
                where=str(self.operator.written.name),
                remedy="see `felixlike doctor`; measure=False leaves out all timings",
            )
        return np.where(bad[:, None], np.inf, seconds)

    def _at(self, sizes: tuple[int, ...]) -> tuple[Task, Operator]:
        """The operator at fixed sizes, as a task and as it is read from that."""
        if sizes not in self._tasks:
            values = dict(zip(self.operator.symbols, sizes, strict=True))
            func = _tvm.substituted(self.operator.func, values)
            name = "x".join(map(str, sizes))
            task = make_task(func, self.target, name=f"sizes {name}", constants=noted_constants(func))
            operator = read_operator(task.module["main"])
            assert operator is not None  # as it is with symbols
            self._tasks[sizes] = task, operator
        return self._tasks[sizes]
