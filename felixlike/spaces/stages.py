"""What the blocks of a function do: their loops and accesses, as rules for whole functions read them.

In: the schedule of an unscheduled function. Out: `Stage`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Schedule, Var
from felixlike.spaces.blocks import are_loops, moving, realizes

_CHEAP = frozenset(["prim.if_then_else", "prim.likely", "tirx.reinterpret"])
"""Calls that may be computed again wherever their value is read; others, like exp, are worth a buffer."""
Access = tuple[Any, tuple[Any, ...]]
"""A buffer and the indices of one element."""


def in_plain_nests(sch: Schedule) -> bool:
    """True if every block stands in a perfect nest of loops, one for each of its variables, in their order; a single
    element stands in none."""
    probe = sch.copy()
    return all(
        are_loops(
            probe, [value for _, value in moving(realize)], probe.get_loops(probe.get_sblock(realize.block.name_hint))
        )
        for realize in realizes(probe.mod["main"].body)
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A block: its variables with their extents in the order of its loops, and what it accesses, by index."""

    name: str
    extents: dict[Any, int]
    reduced: tuple[Any, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    costly: bool
    output: bool

    def step(self, access: Access, variable: Var) -> int:
        """By how many elements an access moves where a variable, all others 0, goes from 0 to 1; -1 if data decide."""
        buffer, indices = access
        address = _tvm.tirx.const(0, "int64")
        for index, extent in zip(indices, buffer.shape, strict=True):
            address = address * extent + index.astype("int64")

        start = dict.fromkeys(self.extents, 0)
        moved = _tvm.simplify(_tvm.substituted(address, start | {variable: 1}) - _tvm.substituted(address, start))
        return int(moved) if isinstance(moved, _tvm.tirx.IntImm) else -1

    def innermost(self, variables: Sequence[Var]) -> Any:
        """The last of some variables that is more than one iteration, or the last."""
        return next((v for v in reversed(variables) if self.extents[v] > 1), variables[-1])


def stages_of(sch: Schedule) -> list[Stage]:
    """The function's blocks in their order."""
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
    """Bits of the elements that a function computes in, by which rules count the lanes of a vector: of the widest
    numbers with a fraction that it writes, or of the widest numbers at all where it writes no such; 32 at least, since
    processors compute in float32 what is narrower."""
    written = {str(r.source.dtype) for realize in realizes(sch.mod["main"].body) for r in realize.block.writes}
    fractions = {dtype for dtype in written if "float" in dtype}
    return max((_LEAST_BITS, *map(_tvm.bits, fractions or written)))


_LEAST_BITS = 32
"""Copies of narrower elements might be longer vectors: 16 × 16 and 32 × 32 blocks of float16 were timed on a Zen 5, and
differed by less than repetitions did."""


def contiguous(stage: Stage, along: Sequence[Any]) -> tuple[int, int]:
    """How many elements the innermost loops run through in one go in all buffers, and how many loops that are."""
    accesses = (*stage.reads, *stage.writes)  # what is summed up stays where it is written
    length, steps, count = 1, [1] * len(accesses), 0
    for variable in reversed(along):
        extent = stage.extents[variable]
        found = [stage.step(access, variable) for access in accesses]
        if extent > 1 and length > 1 and any(f != s * length for f, s in zip(found, steps, strict=True)):
            break
        steps = steps if extent == 1 or length > 1 else found
        length *= extent
        count += 1
    return length, count
