"""What keeps a tile of accumulators from wasting the machine: notes that a schedule carries and a postprocessor checks.

Accumulators: too many spill: every multiplication then costs a store and a load. Too few leave the multipliers waiting
for one another: a sum must be finished before the next product is added to it.
Iterations of the parallel loop: cores that wait for the last of them do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRef, Schedule
from felixlike.spaces.blocks import bound, realize_of

_NOTE = "felixlike."
"""What the notes' names begin with."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """least_accumulators, most_accumulators: vector registers that a tile fills.  registers: how many there are, for
    the tile, the vectors of one of its rows, which are loaded once for all, and one element of the other operand.
    cores: among which the parallel iterations must be shared evenly, so that at most a fifth of the time is spent
    waiting; 1 where that is not asked."""

    least_accumulators: int
    most_accumulators: int
    registers: int
    cores: int

    def holds(self, accumulators: int, vectors: int, iterations: int) -> bool:
        """Whether numbers keep to the bounds.  vectors: of a row of the tile, 1 where there is one row only, for which
        each is used as it is loaded."""
        return (
            self.fits(accumulators, vectors)
            and accumulators >= self.least_accumulators
            and even(iterations, self.cores)
        )

    def fits(self, accumulators: int, vectors: int) -> bool:
        """Whether a tile leaves enough registers."""
        return accumulators <= self.most_accumulators and accumulators + vectors < self.registers


def even(iterations: int, cores: int) -> bool:
    """Whether at least four fifths of the cores' time is used: 5·iterations ≥ 4·cores·⌈iterations / cores⌉."""
    return 5 * iterations >= 4 * cores * -(-iterations // cores)


def note_bounds(schedule: Schedule, block: BlockRef, bounds: Bounds) -> None:
    """Write the bounds on a block whose unrolled and vector loops are the tile."""
    for name, value in asdict(bounds).items():
        schedule.annotate(block, _NOTE + name, value)


_LOOSE = Bounds(least_accumulators=0, most_accumulators=2**30, registers=2**31, cores=1)
"""Which nothing exceeds."""


def noted_bounds(block: Block) -> Bounds | None:
    """The bounds noted on a block of a TVM schedule; None where there are none. Traces in stores of earlier versions
    have fewer notes: what is not noted does not bind."""
    loose = asdict(_LOOSE)
    if _NOTE + next(iter(loose)) not in block.annotations:
        return None
    return Bounds(**{name: int(block.annotations.get(_NOTE + name, value)) for name, value in loose.items()})


def keeps_to_bounds(schedule: Schedule) -> bool:
    """Whether every noted tile of a postprocessed schedule keeps to its bounds."""
    blocks = _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = [(str(block.name_hint), noted_bounds(block)) for block in blocks]
    return all(
        bounds.holds(*_sizes(schedule, schedule.get_sblock(name)))
        for name, bounds in noted
        if bounds is not None and not name.endswith("_init")
    )


def _sizes(schedule: Schedule, reference: BlockRef) -> tuple[int, int, int]:
    """Accumulators, vectors held for all rows and parallel iterations of a block: all its unrolled loops, the innermost
    of them if there are rows, and its parallel ones, reductions left out."""
    reductions = _reduction_values(schedule, reference)
    sizes = {"unrolled": 1, "parallel": 1}
    unrolled: list[int] = []
    for loop in schedule.get_loops(reference):
        statement = schedule.get(loop)
        kind = _tvm.tirx.ForKind(statement.kind).name.lower()
        if kind in sizes and not any(_tvm.uses(value, statement.loop_var) for value in reductions):
            sizes[kind] *= int(statement.extent)
            unrolled += [int(statement.extent)] if kind == "unrolled" else []
    return sizes["unrolled"], unrolled[-1] if len(unrolled) > 1 else 1, sizes["parallel"]


def _reduction_values(schedule: Schedule, reference: BlockRef) -> list[Any]:
    return [value for i, value in bound(realize_of(schedule, reference)) if _tvm.is_reduction(i)]


@dataclass(frozen=True, slots=True)
class Extents:
    """What a tile is cut from.  vectors, rows: of the tile's two axes, with the largest factors they may have in it.
    others: product of the other parallel axes."""

    vectors: int
    most_vectors: int
    rows: int
    most_rows: int
    others: int


def reachable_bounds(extents: Extents, *, registers: int, unrolled: bool, cores: int) -> Bounds:
    """The bounds for extents, as tight as they leave something to choose.

    registers: of the vector unit.  unrolled: whether a reduction is unrolled around the tile: LLVM then keeps the
    elements that several steps share in registers, too.  Tiles of one vector a row may be smaller than others: as many
    rows as others have lie in too many places of memory to share the L1 cache.  The shares of the registers are chosen
    by hand: three eighths of 32 are half as many again as `IN_FLIGHT`; no benchmark compares others."""
    widest = Bounds(1, registers // 2 if unrolled else registers, registers, cores)
    tiles = [
        (v * r, v if extents.rows > 1 else 1, extents.others * extents.vectors // v * (extents.rows // r))
        for v, r in _tiles(extents)
    ]
    enough = registers // 4 if extents.vectors == 1 else registers * 3 // 8
    least = min(enough, max(size for size, vectors, _ in tiles if widest.fits(size, vectors)))
    bounds = replace(widest, least_accumulators=least)
    return bounds if any(bounds.holds(*tile) for tile in tiles) else replace(bounds, cores=1)


def _tiles(extents: Extents) -> Iterator[tuple[int, int]]:
    for vectors in _divisors(extents.vectors, extents.most_vectors):
        yield from ((vectors, rows) for rows in _divisors(extents.rows, extents.most_rows))


def _divisors(extent: int, most: int) -> Sequence[int]:
    return [d for d in range(1, min(most, extent) + 1) if extent % d == 0]
