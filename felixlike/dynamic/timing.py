"""Time programs on this machine: compile one module whose programs are selected at the call, and time them in turns.

Input: an operator, pools of uKernels. Output: seconds. Predictions of DietCode's model are checked before the final
code is generated, and trees afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm, codegen
from felixlike.dynamic.bench import Bench, Point, Timings
from felixlike.dynamic.dispatch import decoded, highest_of
from felixlike.dynamic.emit import Pool, emit
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.program import Program
from felixlike.dynamic.ukernel import Floats
from felixlike.frontend import Task
from felixlike.hardware import Device, device_name
from felixlike.hardware.placement import pin_threads
from felixlike.measure import Measurement, Status, Timing
from felixlike.measure.local.in_turns import in_turns
from felixlike.measure.outcome import measurement
from felixlike.measure.packing import Packing

_TIMING = Timing(batch_seconds=4e-4, turns=7)
"""How programs are timed. Chosen by hand."""

_MOST_BYTES = 2**28
"""Upper limit on the bytes of all tensors of a timed size. Chosen by hand."""

PooledProgram = tuple[int, Program]
"""(pool, program)."""


class TileBench(Bench[PooledProgram]):
    """Times programs of register tiles on a CPU.

    Args:
        operator: The operator.
        target: The TVM target.
        pools: The pools of register tiles. All are compiled in one module when a program is timed.
        described: The hardware description.
        timings: The timings of the run.
        name: Name of the operator in the store.
    """

    def __init__(
        self,
        operator: Operator,
        target: Any,
        pools: Sequence[Pool],
        *,
        described: Device,
        timings: Timings | None = None,
        name: str = "operator",
    ) -> None:
        super().__init__(operator, target, timings, name=name)
        self._pools, self._described = pools, described
        self._runs: list[Any] = []
        self._packs: list[Any] = []
        self._packings: list[Packing] = []
        self._sizes: tuple[int, ...] = ()
        self._tensors: list[Any] = []
        self._packed: list[Any] = []

    @property
    def device(self) -> str:
        """Name of this machine's processor."""
        return device_name(self.target)

    def point(self, program: PooledProgram) -> Point:
        """Return the width in vectors and both heights, and a 1 for pairs. Width and pairs determine the pool."""
        number, tiles = program
        pairs = (1,) if self._pools[number].pairs else ()
        return tiles.vectors, tiles.large, tiles.small, *pairs

    def fits(self, sizes: tuple[int, ...]) -> bool:
        """Return whether the tensors of these sizes have elements, and are small enough to be timed."""
        elements = sum(int(np.prod(shape)) for shape in self.shapes_at(sizes))
        return super().fits(sizes) and elements * self.operator.item_bits // 8 <= _MOST_BYTES

    def measure(self, task: Task, sizes: tuple[int, ...], programs: Sequence[PooledProgram]) -> list[Measurement]:
        """Time each program in turns with the others."""
        import torch

        if not self._runs:
            self._compile()
        self._prepare(sizes)
        calls = []
        for pool, program in programs:
            arguments = list(self._tensors)
            if self.operator.constant is not None:
                arguments[self.operator.constant] = self._packed[pool]
            calls.append(partial(self._runs[pool], *arguments, torch.tensor([program.code])))
        pin_threads()
        started = time.perf_counter()
        times = in_turns(calls, _TIMING)
        share = (time.perf_counter() - started) / len(calls)
        return [
            measurement({"status": Status.OK, "repeats": repeats}, build_seconds=0.0, run_seconds=share)
            for repeats in times
        ]

    def _compile(self) -> None:
        """Compile all pools in one module."""
        functions: dict[str, Any] = {}
        for number, pool in enumerate(self._pools):
            code = _tvm.tirx.decl_buffer((1,), "int64", "code")

            def choose(rows: Any, pool: Pool = pool, code: Any = code) -> Any:
                return decoded(code[_tvm.tirx.const(0, "int64")], rows, highest_of(pool))

            kernel, packings = emit(self.operator, pool, choose, device=self._described, more=[code])
            functions[f"run{number}"] = kernel.with_attr("global_symbol", f"run{number}")
            for packing in packings:
                functions[f"pack{number}"] = packing.function.with_attr("global_symbol", f"pack{number}")
                self._packings.append(packing)
        library = codegen.compile_primfuncs(_tvm.IRModule(functions), self.target).jit()
        self._runs = [library[f"run{number}"] for number in range(len(self._pools))]
        self._packs = [library[f"pack{n}"] for n in range(len(self._packings))]

    def _prepare(self, sizes: tuple[int, ...]) -> None:
        """Allocate tensors of these sizes."""
        import torch

        if sizes == self._sizes and self._tensors:
            return
        generator = torch.Generator().manual_seed(0)
        self._tensors = []
        for shape, parameter in zip(self.shapes_at(sizes), self.operator.func.params, strict=True):
            dtype = getattr(torch, str(parameter.dtype))
            filled = torch.rand(shape, generator=generator) if dtype.is_floating_point else torch.zeros(shape)
            self._tensors.append(filled.to(dtype))
        if self.operator.constant is not None and not self._packed:
            constant = self._tensors[self.operator.constant]
            self._packed = [torch.empty(p.shape, dtype=getattr(torch, p.dtype)) for p in self._packings]
            for pack, packed in zip(self._packs, self._packed, strict=True):
                pack(constant, packed)
        self._sizes = sizes


def kendall(first: Floats, second: Floats) -> float:
    """Return Kendall's τ of two rankings; 1 for fewer than two finite pairs."""
    finite = np.isfinite(first) & np.isfinite(second)
    a, b = first[finite], second[finite]
    if len(a) < 2:
        return 1.0
    signs = np.sign(a[:, None] - a[None, :]) * np.sign(b[:, None] - b[None, :])
    return float(signs.sum() / (len(a) * (len(a) - 1)))
