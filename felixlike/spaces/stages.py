"""Read the loops and accesses of a function's blocks, for rules that schedule whole functions.

Input: the schedule of an unscheduled function. Output: `Stage`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Schedule, Var
from felixlike.spaces.blocks import are_loops, moving, realizes

_CHEAP = frozenset(["prim.if_then_else", "prim.likely", "tirx.reinterpret"])
"""Calls that may be recomputed wherever their value is read. Others, like exp, are stored in a buffer."""
Access = tuple[Any, tuple[Any, ...]]
"""A buffer and the indices of one element."""


def in_plain_nests(sch: Schedule) -> bool:
    """Return whether every block is in a perfect loop nest with one loop for each variable, in order.

    A block of a single element needs no loop.
    """
    probe = sch.copy()
    return all(
        are_loops(
            probe, [value for _, value in moving(realize)], probe.get_loops(probe.get_sblock(realize.block.name_hint))
        )
        for realize in realizes(probe.mod["main"].body)
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A block with its loops and accesses.

    Attributes:
        name: The block's name.
        extents: Variable → iterations, in the order of the loops.
        reduced: Reduction variables.
        reads: Buffers and indices that are read, without the buffers that the block writes.
        writes: Buffers and indices that are written.
        costly: Whether the body calls a function other than those in `_CHEAP`.
        output: Whether a written buffer is a parameter of the function.
    """

    name: str
    extents: dict[Any, int]
    reduced: tuple[Any, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    costly: bool
    output: bool

    def step(self, access: Access, variable: Var) -> int:
        """Return the stride of an access, in elements, from 0 to 1 of a variable with all others at 0; -1 if it depends
        on data.
        """
        buffer, indices = access
        address = _tvm.tirx.const(0, "int64")
        for index, extent in zip(indices, buffer.shape, strict=True):
            address = address * extent + index.astype("int64")

        start = dict.fromkeys(self.extents, 0)
        moved = _tvm.simplify(_tvm.substituted(address, start | {variable: 1}) - _tvm.substituted(address, start))
        return int(moved) if isinstance(moved, _tvm.tirx.IntImm) else -1

    def innermost(self, variables: Sequence[Var]) -> Any:
        """Return the last of some variables with more than one iteration, or the last one."""
        return next((v for v in reversed(variables) if self.extents[v] > 1), variables[-1])


def stages_of(sch: Schedule) -> list[Stage]:
    """Return the function's stages in program order."""
    main = sch.mod["main"]
    stages = []
    for realize in realizes(main.body):
        block = realize.block
        calls = {str(getattr(call.op, "name", "")) for call in _tvm.found(block.body, _tvm.ir.Call)}
        written = [region.source for region in block.writes]
        stages.append(
            Stage(
                name=str(block.name_hint),
                extents={i.var: int(i.dom.extent) for i, _ in moving(realize)},
                reduced=tuple(i.var for i in block.iter_vars if _tvm.is_reduction(i)),
                reads=tuple(
                    (load.source, tuple(load.indices))
                    for load in _tvm.found(block.body, _tvm.ir.TensorLoad)
                    if load.source not in written
                ),
                writes=tuple((r.source, tuple(x.min for x in r.region)) for r in block.writes),
                costly=not calls <= _CHEAP,
                output=any(p.same_as(buffer) for p in main.params for buffer in written),
            )
        )
    return stages


def item_bits(sch: Any) -> int:
    """Return the bits of the elements that a function computes in, from which rules derive a vector's lanes.

    This is the widest floating-point type that the function writes, or the widest type if it writes no floating-point
    numbers. It is at least 32, because processors compute narrower types in float32.
    """
    written = {str(r.source.dtype) for realize in realizes(sch.mod["main"].body) for r in realize.block.writes}
    fractions = {dtype for dtype in written if "float" in dtype}
    return max((_LEAST_BITS, *map(_tvm.bits, fractions or written)))


_LEAST_BITS = 32
"""Bits of an element at least. Copies of narrower elements could use longer vectors: 16 × 16 and 32 × 32 blocks of
float16 were timed on a Zen 5 and differed by less than repetitions did."""


def contiguous(stage: Stage, along: Sequence[Any]) -> tuple[int, int]:
    """Return how many elements the innermost loops cover contiguously in all buffers, and the number of these loops."""
    accesses = (*stage.reads, *stage.writes)  # sums stay in the buffer that is written
    length, steps, count = 1, [1] * len(accesses), 0
    for variable in reversed(along):
        extent = stage.extents[variable]
        strides = [stage.step(access, variable) for access in accesses]
        if extent > 1 and length > 1 and any(f != s * length for f, s in zip(strides, steps, strict=True)):
            break
        steps = steps if extent == 1 or length > 1 else strides
        length *= extent
        count += 1
    return length, count
