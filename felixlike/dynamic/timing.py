"""What programs really take: one module in which a call says which program runs, timed in turns.

In: an operator, pools of uKernels. Out: seconds. Predictions of DietCode's model are checked here before anything is
emitted, and trees afterwards.
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
"""Turns that each call of a comparison gets."""

_TURN = 4e-4
"""Seconds of a turn, at least."""

_MOST_BYTES = 2**28
"""Of the tensors of a size that is timed."""

Trial = tuple[int, Program, tuple[int, ...]]
"""(pool, program, sizes of the symbols)."""


class Bench:
    """The uKernels of an operator, compiled to be timed.  measured: how many timings it has taken."""

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
        """Compile all pools, in one module."""
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
        """What each takes, timed in turns with the others of the same sizes.  float64[trials]; ∞ for sizes that are too
        large to be timed."""
        found = np.full(len(trials), np.inf)
        for sizes in dict.fromkeys(trial[2] for trial in trials):
            own = [i for i, trial in enumerate(trials) if trial[2] == sizes]
            if self._prepare(sizes):
                found[own] = self._in_turns([trials[i] for i in own])
                self.measured += len(own)
        return found

    def _prepare(self, sizes: tuple[int, ...]) -> bool:
        """Have tensors of these sizes at hand; False where they would be too large."""
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
            given = self._tensors[self.operator.constant]
            self._packed = [torch.empty(shape, dtype=given.dtype) for shape in self._shapes]
            for pack, packed in zip(self._packs, self._packed, strict=True):
                pack(given, packed)
        self._sizes = sizes
        return True

    def _in_turns(self, trials: Sequence[Trial]) -> list[float]:
        import torch

        calls = []
        for pool, program, _ in trials:
            given = list(self._tensors)
            if self.operator.constant is not None:
                given[self.operator.constant] = self._packed[pool]
            calls.append((self._runs[pool], [*given, torch.tensor([program.code])]))
        pin_threads()
        found = in_turns([partial(run, *given) for run, given in calls], seconds=_TURN)
        return [min(own) for own in found]  # whatever else the machine does makes calls slower, never faster


def in_turns(calls: Sequence[Callable[[], object]], *, seconds: float) -> list[list[float]]:
    """Seconds of a call in each turn, for each of the calls, which take turns while no other process measures.
    seconds: of a turn, at least."""
    with alone_on_machine():
        return _in_turns(calls, seconds)


def _in_turns(calls: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    counts = []
    for call in calls:
        call()
        started = time.perf_counter()
        call()
        counts.append(max(1, int(seconds / max(time.perf_counter() - started, 1e-7))))
    repeats: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, count, own in zip(calls, counts, repeats, strict=True):
            started = time.perf_counter()
            for _ in range(count):
                call()
            own.append((time.perf_counter() - started) / count)
    return repeats


def kendall(first: Floats, second: Floats) -> float:
    """Kendall's τ of two rankings of the same things; 1 for fewer than two."""
    known = np.isfinite(first) & np.isfinite(second)
    a, b = first[known], second[known]
    if len(a) < 2:
        return 1.0
    signs = np.sign(a[:, None] - a[None, :]) * np.sign(b[:, None] - b[None, :])
    return float(signs.sum() / (len(a) * (len(a) - 1)))
