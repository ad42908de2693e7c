"""Time programs on this machine: compile one module whose programs are selected at the call, and time them in turns.

Input: an operator, pools of uKernels. Output: seconds. Predictions of DietCode's model are checked before the final
code is generated, and trees afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm, codegen
from felixlike.dynamic.dispatch import decoded, highest_of
from felixlike.dynamic.emit import Pool, emit
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.program import Program
from felixlike.dynamic.ukernel import Floats
from felixlike.hardware.placement import pin_threads
from felixlike.measure.local.machine_lock import alone_on_machine

_ROUNDS = 7
"""Turns of each call in a comparison. Chosen by hand."""

_TURN = 4e-4
"""Least seconds of one turn. Chosen by hand."""

_MOST_BYTES = 2**28
"""Upper limit on the bytes of all tensors of a timed size. Chosen by hand."""

Trial = tuple[int, Program, tuple[int, ...]]
"""(pool, program, sizes of the symbols)."""


class Bench:
    """The uKernels of an operator, compiled for timing. measured: number of timings so far."""

    def __init__(self, operator: Operator, target: Any, *, cores: int) -> None:
        self.operator, self.target, self.cores = operator, target, cores
        self.measured = 0
        self._runs: list[Any] = []
        self._packs: list[Any] = []
        self._shapes: list[tuple[int, ...]] = []
        self._sizes: tuple[int, ...] = ()
        self._tensors: list[Any] = []
        self._packed: list[Any] = []

    def open(self, pools: Sequence[Pool]) -> None:
        """Compile all pools in one module."""
        functions: dict[str, Any] = {}
        for number, pool in enumerate(pools):
            code = _tvm.tirx.decl_buffer((1,), "int64", "code")

            def choose(rows: Any, pool: Pool = pool, code: Any = code) -> Any:
                return decoded(code[_tvm.tirx.const(0, "int64")], rows, highest_of(pool))

            kernel, packings = emit(self.operator, pool, choose, cores=self.cores, more=[code])
            functions[f"run{number}"] = kernel.with_attr("global_symbol", f"run{number}")
            for packing in packings:
                functions[f"pack{number}"] = packing.function.with_attr("global_symbol", f"pack{number}")
                self._shapes.append(packing.shape)
        library = codegen.compile_primfuncs(_tvm.IRModule(functions), self.target).jit()
        self._runs = [library[f"run{number}"] for number in range(len(pools))]
        self._packs = [library[f"pack{n}"] for n in range(len(pools))] if self._shapes else []

    def seconds(self, trials: Sequence[Trial]) -> Floats:
        """Time each trial in turns with the others of the same sizes.

        Return float64[trials]; ∞ for sizes whose tensors are too large.
        """
        seconds = np.full(len(trials), np.inf)
        for sizes in dict.fromkeys(trial[2] for trial in trials):
            indices = [i for i, trial in enumerate(trials) if trial[2] == sizes]
            if self._prepare(sizes):
                seconds[indices] = self._in_turns([trials[i] for i in indices])
                self.measured += len(indices)
        return seconds

    def _prepare(self, sizes: tuple[int, ...]) -> bool:
        """Allocate tensors of these sizes; return False if they would be too large."""
        import torch

        if sizes == self._sizes and self._tensors:
            return True
        values = dict(zip(self.operator.symbols, sizes, strict=True))
        shapes = [
            tuple(int(_tvm.simplify(_tvm.substituted(size, values))) for size in parameter.shape)
            for parameter in self.operator.func.params
        ]
        if sum(int(np.prod(shape)) for shape in shapes) * self.operator.item_bits // 8 > _MOST_BYTES:
            return False
        generator = torch.Generator().manual_seed(0)
        self._tensors = []
        for shape, parameter in zip(shapes, self.operator.func.params, strict=True):
            dtype = getattr(torch, str(parameter.dtype))
            filled = torch.rand(shape, generator=generator) if dtype.is_floating_point else torch.zeros(shape)
            self._tensors.append(filled.to(dtype))
        if self.operator.constant is not None and not self._packed:
            constant = self._tensors[self.operator.constant]
            self._packed = [torch.empty(shape, dtype=constant.dtype) for shape in self._shapes]
            for pack, packed in zip(self._packs, self._packed, strict=True):
                pack(constant, packed)
        self._sizes = sizes
        return True

    def _in_turns(self, trials: Sequence[Trial]) -> list[float]:
        """Return the least seconds of a call of each trial."""
        import torch

        calls = []
        for pool, program, _ in trials:
            arguments = list(self._tensors)
            if self.operator.constant is not None:
                arguments[self.operator.constant] = self._packed[pool]
            calls.append((self._runs[pool], [*arguments, torch.tensor([program.code])]))
        pin_threads()
        times = in_turns([partial(run, *arguments) for run, arguments in calls], seconds=_TURN)
        return [min(turns) for turns in times]  # the minimum, since other load makes calls slower, never faster


def in_turns(calls: Sequence[Callable[[], object]], *, seconds: float) -> list[list[float]]:
    """Time calls in turns while no other process measures; return the seconds of a call in each turn, for each call.

    seconds: Least duration of a turn.
    """
    with alone_on_machine():
        return _in_turns(calls, seconds)


def _in_turns(calls: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Time calls in turns, without the lock of the machine."""
    counts = []
    for call in calls:
        call()
        started = time.perf_counter()
        call()
        counts.append(max(1, int(seconds / max(time.perf_counter() - started, 1e-7))))
    repeats: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, count, times in zip(calls, counts, repeats, strict=True):
            started = time.perf_counter()
            for _ in range(count):
                call()
            times.append((time.perf_counter() - started) / count)
    return repeats


def kendall(first: Floats, second: Floats) -> float:
    """Return Kendall's τ of two rankings; 1 for fewer than two finite pairs."""
    finite = np.isfinite(first) & np.isfinite(second)
    a, b = first[finite], second[finite]
    if len(a) < 2:
        return 1.0
    signs = np.sign(a[:, None] - a[None, :]) * np.sign(b[:, None] - b[None, :])
    return float(signs.sum() / (len(a) * (len(a) - 1)))
