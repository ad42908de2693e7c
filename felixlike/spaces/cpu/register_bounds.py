"""Bound the register tiles of CPUs: block annotations that a schedule carries and a postprocessor checks.

Accumulators: too many spill, and every multiplication then costs a store and a load. Too few leave the multipliers
idle, because a sum must be finished before the next product is added to it. Iterations of the parallel loop: cores that
have finished theirs wait for the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRef, Schedule
from felixlike.hardware import estimate
from felixlike.spaces.blocks import bound, realize_of

_PREFIX = "felixlike."
"""Prefix of the annotations' keys."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a register tile.

    Attributes:
        least_accumulators: Lower limit on the vector registers that a tile fills.
        most_accumulators: Upper limit on them.
        registers: Vector registers for the tile, for the vectors of one of its rows, which are loaded once for all
            rows, and for one element of the other operand.
        cores: Cores that share the parallel iterations evenly, so that they idle at most a fifth of the time; 1 for no
            limit.
        least_vectors: Lower limit on the vectors of a row of several.
    """

    least_accumulators: int
    most_accumulators: int
    registers: int
    cores: int
    least_vectors: int = 1

    def holds(self, accumulators: int, vectors: int, iterations: int) -> bool:
        """Return whether a tile is within the bounds.

        `vectors` are those of a row of the tile. It is 1 if there is one row only: each vector is then used as it is
        loaded.
        """
        return (
            self.fits(accumulators, vectors)
            and accumulators >= self.least_accumulators
            and vectors >= self.least_vectors
            and estimate.even(iterations, self.cores)
        )

    def fits(self, accumulators: int, vectors: int) -> bool:
        """Return whether a tile leaves enough registers."""
        return accumulators <= self.most_accumulators and accumulators + vectors < self.registers


def note_bounds(schedule: Schedule, block: BlockRef, bounds: Bounds) -> None:
    """Annotate a block, whose unrolled and vectorized loops are the tile, with its bounds.

    A default value is not annotated, so that traces in record stores keep their form.
    """
    defaults = {f.name: f.default for f in fields(bounds)}
    for name, value in asdict(bounds).items():
        if value != defaults[name]:
            schedule.annotate(block, _PREFIX + name, value)


_UNBOUNDED = Bounds(least_accumulators=0, most_accumulators=2**30, registers=2**31, cores=1)
"""Bounds that every tile satisfies."""


def noted_bounds(block: Block) -> Bounds | None:
    """Return the bounds that a block is annotated with.

    Traces in record stores of earlier versions have fewer annotations. A missing annotation does not restrict the tile.

    Args:
        block: A block of a TVM schedule.

    Returns:
        The bounds, or None if the block has no such annotations.
    """
    defaults = asdict(_UNBOUNDED)
    if _PREFIX + next(iter(defaults)) not in block.annotations:
        return None
    return Bounds(**{name: int(block.annotations.get(_PREFIX + name, value)) for name, value in defaults.items()})


def keeps_to_bounds(schedule: Schedule) -> bool:
    """Return whether every annotated tile of a postprocessed schedule is within its bounds."""
    blocks = _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = [(str(block.name_hint), noted_bounds(block)) for block in blocks]
    return all(
        bounds.holds(*_sizes(schedule, schedule.get_sblock(name)))
        for name, bounds in noted
        if bounds is not None and not name.endswith("_init")
    )


def _sizes(schedule: Schedule, reference: BlockRef) -> tuple[int, int, int]:
    """Return the accumulators, vectors of a row and parallel iterations of a block.

    These are the products of all its unrolled loops, the innermost unrolled loop if there are rows, and the product of
    its parallel loops, all without reductions.
    """
    reductions = _reduction_values(schedule, reference)
    sizes = {"unrolled": 1, "parallel": 1}
    unrolled: list[int] = []
    for loop in schedule.get_loops(reference):
        statement = schedule.get(loop)
        kind = _tvm.tirx.ForKind(statement.kind).name.lower()
        if kind in sizes and not any(_tvm.uses(value, statement.loop_var) for value in reductions):
            sizes[kind] *= int(statement.extent)
            unrolled += [int(statement.extent)] if kind == "unrolled" else []
    rows = sizes["unrolled"] // unrolled[-1] if unrolled else 1
    return sizes["unrolled"], unrolled[-1] if rows > 1 else 1, sizes["parallel"]


def _reduction_values(schedule: Schedule, reference: BlockRef) -> list[Any]:
    """Return the values that a block's reduction iterators are bound to."""
    return [value for i, value in bound(realize_of(schedule, reference)) if _tvm.is_reduction(i)]


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents that a tile is cut from.

    Attributes:
        vectors: Extent of the vector axis, in vectors.
        most_vectors: Upper limit on vectors in a row of the tile.
        rows: Extent of the rows axis.
        most_rows: Upper limit on rows of the tile.
        others: Product of the other parallel axes.
    """

    vectors: int
    most_vectors: int
    rows: int
    most_rows: int
    others: int


def reachable_bounds(extents: Extents, *, registers: int, unrolled: bool, cores: int) -> Bounds:
    """Return the tightest bounds that at least one tile of the extents satisfies.

    Tiles of one vector a row may be smaller than others: the many rows they need would lie in too many places of memory
    to share the L1 cache. The shares of the registers are chosen by hand: three eighths of 32 are half as many again as
    `IN_FLIGHT`. No benchmark compares others.

    Args:
        extents: The extents that the tile is cut from.
        registers: Registers of the vector unit.
        unrolled: Whether a reduction is unrolled around the tile. LLVM then also keeps elements that several steps
            share in registers.
        cores: Cores of the device.
    """
    widest = Bounds(1, registers // 2 if unrolled else registers, registers, cores)
    tiles = [
        (v * r, v if r > 1 else 1, extents.others * extents.vectors // v * (extents.rows // r))
        for v, r in _tiles(extents)
    ]
    enough = registers // 4 if extents.vectors == 1 else registers * 3 // 8
    least = min(enough, max(size for size, vectors, _ in tiles if widest.fits(size, vectors)))
    bounds = replace(widest, least_accumulators=least)
    return bounds if any(bounds.holds(*tile) for tile in tiles) else replace(bounds, cores=1)


def have_equal_widths(tiles: Sequence[tuple[Extents, Bounds]], *, least: int = 1, iterations: int = 1) -> bool:
    """Return whether several tiles with equally many vectors a row are within their bounds.

    Args:
        tiles: Of each tile, the extents that it is cut from and its bounds.
        least: Lower limit on vectors of a row, and on rows.
        iterations: Lower limit on the parallel iterations of each.
    """
    widths = [
        {
            vectors
            for vectors, rows in _tiles(extents)
            if min(vectors, rows) >= least
            and bounds.holds(vectors * rows, vectors if rows > 1 else 1, extents.others * extents.vectors // vectors)
            and extents.others * extents.vectors // vectors >= iterations
        }
        for extents, bounds in tiles
    ]
    return bool(set.intersection(*widths))


def _tiles(extents: Extents) -> Iterator[tuple[int, int]]:
    """Yield the tiles (vectors, rows) that divide the extents."""
    for vectors in _divisors(extents.vectors, extents.most_vectors):
        yield from ((vectors, rows) for rows in _divisors(extents.rows, extents.most_rows))


def _divisors(extent: int, most: int) -> Sequence[int]:
    """Return the divisors of an extent up to `most`."""
    return [d for d in range(1, min(most, extent) + 1) if extent % d == 0]
