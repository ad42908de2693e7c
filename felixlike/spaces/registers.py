"""How many vector registers a tile of accumulators may and should fill, as notes that a schedule carries.

Too many spill: every multiplication then costs a store and a load. Too few leave the multipliers waiting for each other:
a sum must be finished before the next product is added to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from felixlike import tvmlib

MOST, LEAST = "felixlike.most_accumulators", "felixlike.least_accumulators"
"""Notes on the block whose innermost loops are the tile."""


@dataclass(frozen=True, slots=True)
class Accumulators:
    """Registers that the accumulators of a tile may fill.  least: below that the arithmetic waits; as far as the
    extents allow.  most: above that registers spill."""

    least: int
    most: int


def accumulators(registers: int, unrolled: bool, tiles: Iterable[int]) -> Accumulators:
    """The bounds for tiles of the given sizes, in vectors.

    registers: of the vector unit.  unrolled: whether a reduction is unrolled around the tile: LLVM then keeps the
    elements that several steps share in registers, too."""
    most = registers // 2 if unrolled else registers * 3 // 4
    reachable = max((tile for tile in tiles if tile <= most), default=1)
    return Accumulators(min(registers // 4, reachable), most)


def note_accumulators(schedule: Any, block: Any, bounds: Accumulators) -> None:
    """Write the bounds where `noted_accumulators` and the postprocessor find them."""
    schedule.annotate(block, LEAST, bounds.least)
    schedule.annotate(block, MOST, bounds.most)


def noted_accumulators(block: Any) -> Accumulators | None:
    """The bounds noted on a block of a TVM schedule; None where there are none."""
    if MOST not in block.annotations:
        return None
    return Accumulators(int(block.annotations[LEAST]), int(block.annotations[MOST]))


def accumulators_fit(schedule: Any) -> bool:
    """Whether every noted tile of a postprocessed schedule keeps to its bounds."""
    blocks: list[Any] = []
    tvmlib.structural_walk(schedule.mod["main"].body, (tvmlib.s_tir.SBlock, blocks.append))
    for block in blocks:
        bounds = noted_accumulators(block)
        if bounds is None or block.name_hint.endswith("_init"):
            continue
        if not bounds.least <= _tile(schedule, str(block.name_hint)) <= bounds.most:
            return False
    return True


def _tile(schedule: Any, name: str) -> int:
    """Vectors in the tile of a block: the product of its unrolled loops that are not reductions."""
    reference = schedule.get_sblock(name)
    block = schedule.get(reference)
    realize = schedule.get_sref(reference).parent.stmt.body
    reductions = [v for i, v in zip(block.iter_vars, realize.iter_values, strict=True) if int(i.iter_type) == 2]
    size = 1
    for loop in schedule.get_loops(reference):
        statement = schedule.get(loop)
        unrolled = int(statement.kind) == int(tvmlib.tirx.ForKind.UNROLLED)
        if unrolled and not any(tvmlib.uses(value, statement.loop_var) for value in reductions):
            size *= int(statement.extent)
    return size
