"""Schedule attention: scores, softmax and the product with the values for one tile of queries after another.

    for i in n, j in m, d:                     parallel for i_0:
        S[j, i] += K[j, d] · Q[d, i]               for j_0:
    for i, j: X[j, i] = S[j, i] + mask                 for d: unroll j_1, i_1: vector i_2: T[…] += K[…] · Q[…]
    for i: M[i] = max X[·, i]            →             unroll j_1, i_1: vector i_2: X[j, i] = T[…] + mask
    for i, j: P[j, i] = exp(X[j, i] − M[i])        for j: unroll i_1: vector i_2: M[i] = max(M[i], X[j, i])
    for i, d, j: O[d, i] += V[j, d] · P[j, i]      … the same for P and its sums
                                                   for d_0:
                                                       for j: unroll d_1, i_1: vector i_2: T[…] += V[…] · P[…]

Vectors have neighbouring queries. So keys and values are read in place, one element at a time, sums of the softmax need
no exchange between lanes, and the scores of a tile of queries stay in the cache. Only queries and outputs are
transposed, once. There are two sketches: one computes all stages in one parallel loop. The other has one parallel loop
for the scores, one for the softmax and one for the product with the values. The rule reads loop nests and indices,
never names of operators.

In the first sketch, unless a mask of positions hides keys, M is updated in the loop over j_0, and P is summed where it
is computed: scores and exponentials, which only fit into the L2 cache, are then loaded once less each.

Where products may be rounded, two more sketches compute both products in pairs of bfloat16 numbers. A tile of queries
copies keys, values, its queries and its exponentials for that. If there are many tiles, keys and values are copied once
before all tiles. Scores, maxima, exponentials and sums are float32. Where an instruction multiplies matrices, rows of
these are keys or elements of a value, and columns are queries. Values are then transposed when they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule
from felixlike.codegen.annotations import Guard, Keys, Matrix, Softmax, Transpose
from felixlike.codegen.masking import comparisons
from felixlike.codegen.matrix_functions import REGISTERS
from felixlike.codegen.pair_functions import LANES
from felixlike.frontend.constants import has_half_factors
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS, Device, estimate, matrices
from felixlike.hardware.vectors import TILE, widths
from felixlike.spaces.cpu import bfloat16_pairs
from felixlike.spaces.cpu.attention_stages import (
    ITEM_BITS,
    AttentionStages,
    Product,
    products_of,
    read_attention,
    subtracts_maxima,
)
from felixlike.spaces.cpu.matrix_tiles import MOST
from felixlike.spaces.cpu.register_bounds import Bounds, Extents, have_equal_widths, note_bounds, reachable_bounds
from felixlike.spaces.cpu.register_tile import moved_last, vectorize
from felixlike.spaces.stages import in_plain_nests, stages_of

_QUERIES = 4
"""Vectors of a tile of queries, in estimates."""

_PARTS = 8
"""Parallel iterations for each core from which on no tile has one vector of queries. Chosen by hand. A tile of one
vector loads every key and value for it alone: at 1,500 keys of 6 heads, the best took 1.1 times as long as those of 5.
"""

_SHARED = 2
"""Tiles of queries up to which each rounds the keys and values of its head. Chosen by hand: rounding these once takes a
parallel loop. Measured at 94 vectors of queries: rounding by tiles took 11 % of the time, rounding once takes 1 %."""


def query_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return new schedules of a function with two contractions and a softmax between them, or [] for other functions.

    Args:
        schedule: The schedule of the whole function. It is not changed.
        block: Block that MetaSchedule visits. The rule applies at the root block only.
        device: The device, whose vectors divide the last axis of both contractions.
    """
    if schedule.get_sref(block).parent is not None or not in_plain_nests(schedule):
        return []
    stages = read_attention(stages_of(schedule), products_of(schedule, device))
    if stages is None:
        return []
    types = {str(p.dtype) for p in schedule.mod["main"].params}
    may_round = device.rounds_factors(given=has_half_factors(schedule.mod["main"]))
    rounds = may_round and types <= {FLOAT32.name, BFLOAT16.name} and _fit_pairs(stages, device)
    rounds = rounds and _pairs_are_faster(stages, device)
    schedules = []
    bounded = subtracts_maxima(schedule, stages)
    for pairs, together in [(pairs, together) for pairs in (False, True)[: 1 + rounds] for together in (True, False)]:
        new = schedule.copy()
        try:
            _Tiles(new, stages, device, pairs, bounded).apply(together=together)
        except _tvm.TVM_ERRORS as error:  # it cannot pad the sum over an odd number of keys where heads share values
            if not pairs or not _tvm.refusal(error):
                raise
            continue
        schedules.append(new)
    return schedules


def _fit_pairs(stages: AttentionStages, device: Device) -> bool:
    """Return whether both products can be computed in pairs: rows of keys and of values are contiguous."""
    keys, values = stages.scores, stages.products
    places = [
        product.dimension(operand, axis)
        for product in (keys, values)
        for operand, across in ((product.vector, product.column), (product.broadcast, product.row))
        for axis in (across, product.summed)
    ]
    whole = keys.summed.extent % bfloat16_pairs.PAIR == 0 and values.summed.extent >= bfloat16_pairs.PAIR
    contiguous = keys.broadcast.contiguous(keys.summed) and values.broadcast.contiguous(values.row)
    fit = -1 not in places and whole and contiguous
    if device.has_tiles:
        return fit and device.unit.lanes(ITEM_BITS) == matrices.ROWS and values.summed.extent % bfloat16_pairs.PAIR == 0
    return fit and device.unit.lanes(ITEM_BITS) in LANES


def _pairs_are_faster(stages: AttentionStages, device: Device) -> bool:
    """Return whether pairs, or matrices of them, are estimated to be faster than float32."""
    lanes = device.unit.lanes(ITEM_BITS)
    roundings = 1 if _are_rounded_once(stages, lanes) else _tile_count(stages, lanes)
    saved = rounded = 0.0
    for product in (stages.scores, stages.products):
        row, column, summed = product.row.extent, product.column.extent, product.summed.extent
        times = float(bfloat16_pairs.PAIR)
        if device.has_tiles:
            times = matrices.times(*product.matrix)
            if not matrices.pay(*product.matrix):
                return False
        saved += row * column * summed * (1 - 1 / times)
        rounded += summed * (column + row * roundings)
    return saved > estimate.COSTS.rounded * rounded


def _are_rounded_once(stages: AttentionStages, lanes: int) -> bool:
    """Return whether keys and values are rounded once, before the tiles of queries, and not by each tile."""
    return _tile_count(stages, lanes) > _SHARED


def _tile_count(stages: AttentionStages, lanes: int) -> int:
    """Return the estimated number of tiles of queries in a head."""
    return -(-stages.scores.column.extent // (_QUERIES * lanes))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Apply the primitives to the stages of attention.

    Attributes:
        schedule: The schedule, which is changed.
        stages: Its stages.
        device: The device.
        pairs: Whether both products are computed in pairs, or in matrices of pairs where an instruction does that.
        bounded: Whether arguments of exponentials are at most 0.
    """

    schedule: Any
    stages: AttentionStages
    device: Device
    pairs: bool
    bounded: bool

    @property
    def matrices(self) -> bool:
        """Return whether an instruction multiplies matrices of pairs."""
        return self.pairs and self.device.has_tiles

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.device.unit.lanes(ITEM_BITS)

    def apply(self, *, together: bool) -> None:
        """Tile all stages, in one parallel loop or in three."""
        schedule, stages = self.schedule, self.stages
        block = schedule.get_sblock
        odd = stages.products.summed.extent % bfloat16_pairs.PAIR
        if self.pairs and odd:
            axes = len(stages.products.contraction.axes)
            schedule.pad_einsum(block(stages.products.name), [1] * (axes - 1) + [bfloat16_pairs.PAIR])
        inlined = (not self.pairs, not self.pairs or odd)
        for name, inline in zip(stages.padding, inlined, strict=True):
            if name is not None and inline:
                schedule.compute_inline(block(name))
        scores, weighted = block(stages.scores.name), block(stages.weighted)
        masked = block(stages.masked) if stages.masked else schedule.cache_write(scores, 0, "global")
        hides = self._hides_keys(masked)
        shared, *tile = self._parallel(weighted)
        schedule.reverse_compute_at(block(stages.output), shared, preserve_unit_loops=True)
        fused = together and not hides and not (self.pairs and odd)
        _, *over_keys = self._register_tile(
            stages.products, tile, shared, guarded=stages.padding[1] is not None, fused=fused
        )
        for name in reversed(stages.after) if together else ():
            schedule.compute_at(block(name), shared, preserve_unit_loops=True)
        if together:
            schedule.compute_at(block(stages.powers), shared, preserve_unit_loops=True)
            self._powers_once() if fused else self._vectors(block(stages.powers))
        else:
            shared, _, inner, lane = self._parallel(block(stages.powers))
            schedule.unroll(inner)
            schedule.vectorize(lane)
            for name in stages.after:
                schedule.reverse_compute_at(block(name), shared, preserve_unit_loops=True)
        schedule.compute_at(block(stages.before[0]), shared, preserve_unit_loops=True)
        if together:
            schedule.compute_at(masked, shared, preserve_unit_loops=True)
            *_, rows, columns = schedule.get_loops(masked)
            tile = [rows, *schedule.split(columns, [None, self.lanes])]
        else:
            shared, *tile = self._parallel(masked)
        tiles, terms, *_ = self._register_tile(stages.scores, tile, shared, guarded=stages.padding[0] is not None)
        schedule.compute_at(block(stages.queries), shared, preserve_unit_loops=True)
        if fused:
            schedule.reverse_compute_at(block(stages.before[0]), tiles, preserve_unit_loops=True)
            # Otherwise, TVM would write the zeros of all scores first: the maximum makes `tiles` a reduction.
            schedule.decompose_reduction(block(stages.scores.name), terms)
        names = (*stages.before, *stages.after)
        summed = [loop for name in names for loop in self._vectors(block(name), unrolled=fused)]
        self._mark_softmax()
        # The loops of one parallel loop have the same queries. Otherwise, all scores must be -inf or a number.
        hidden = [tiles, schedule.get_loops(block(stages.powers))[-3]] if together else [terms]
        for loop in (*over_keys, *summed, *hidden) if hides else ():
            Keys().put(schedule, loop)
        self._transposed()

    def _hides_keys(self, masked: BlockRef) -> bool:
        """Return whether comparisons of positions hide keys from some queries."""
        value = self.schedule.get(masked).body.value
        return any(len(_tvm.found(test, _tvm.tirx.Var)) > 1 for test in comparisons(value))

    def _parallel(self, block: BlockRef) -> list[Any]:
        """Make one parallel loop of a block's loops over the batch and over tiles of columns.

        Returns that loop, and the loops over rows, vectors and lanes in it.
        """
        schedule = self.schedule
        *batch, rows, columns = schedule.get_loops(block)
        vectors, lane = schedule.split(columns, [None, self.lanes])
        outer, inner = schedule.split(
            vectors, schedule.sample_perfect_tile(vectors, 2, MOST if self.matrices else TILE.vectors)
        )
        schedule.reorder(*batch, outer, rows, inner, lane)
        shared = schedule.fuse(*batch, outer) if batch else outer
        schedule.parallel(shared)
        return [shared, rows, inner, lane]

    def _register_tile(
        self, product: Product, tile: Sequence[LoopRef], shared: LoopRef, *, guarded: bool, fused: bool = False
    ) -> list[LoopRef]:
        """Compute a product in register tiles at the loops over rows, vectors and lanes of the block that reads it.

        `shared` is the parallel loop. `guarded` says whether the operand without vectors is padded.
        Returns the loop over tiles of rows, and the loops over the terms of the sum: of the product, and of the copy of
        the operand in vectors, if there is one.
        """
        schedule, block = self.schedule, self.schedule.get_sblock(product.name)
        rows, vectors, lane = tile
        if self.matrices:
            rows, inner = schedule.split(rows, [None, product.matrix[0]])
            schedule.reorder(rows, inner, vectors, lane)
        outer, row = schedule.split(rows, schedule.sample_perfect_tile(rows, 2, self._extents(product).most_rows))
        schedule.compute_at(block, outer, preserve_unit_loops=True)
        *_, own_row, columns, summed = schedule.get_loops(block)
        own_vectors, own_lane = schedule.split(columns, [None, self.lanes])
        pair, matrix = [], []
        if self.pairs:
            summed, both = schedule.split(summed, [None, bfloat16_pairs.PAIR])
            pair.append(both)
        if self.matrices:
            height, width = product.matrix
            own_row, first = schedule.split(own_row, [None, height])
            summed, words = schedule.split(summed, [None, width])
            Matrix().put(schedule, first)
            matrix += [first, words]
        schedule.reorder(summed, own_row, own_vectors, *matrix, own_lane, *pair)
        for loop in (row, vectors, own_row, own_vectors):
            schedule.unroll(loop)
        for loop in (lane, own_lane):
            schedule.vectorize(loop)
        if guarded and not self.pairs:
            Guard().put(schedule, summed)
        note_bounds(schedule, block, self._bounds(product))
        for loop in pair:
            bfloat16_pairs.mark(schedule, loop)
        return [outer, summed, *(self._round(product, shared, fused=fused) if self.pairs else [])]

    def _bounds(self, product: Product) -> Bounds:
        """Return the bounds of a product's tiles."""
        both = [self._extents(each) for each in (self.stages.scores, self.stages.products)]
        registers = REGISTERS if self.matrices else self.device.unit.registers
        tiles = [(e, reachable_bounds(e, registers=registers, unrolled=False, cores=1)) for e in both]
        if not have_equal_widths(tiles):  # matrices that suit one product are too many for the other
            tiles = [(e, replace(bounds, least_accumulators=1)) for e, bounds in tiles]
        wide = have_equal_widths(tiles, least=2, iterations=_PARTS * self.device.cores)
        _, bounds = tiles[product is self.stages.products]
        return replace(bounds, least_vectors=2 if wide else 1)

    def _extents(self, product: Product) -> Extents:
        """Return the extents that a product's tiles are cut from."""
        *batch, _, _ = product.contraction.spatial
        return Extents(
            vectors=product.column.extent // self.lanes,
            most_vectors=MOST if self.matrices else TILE.vectors,
            rows=product.row.extent // (product.matrix[0] if self.matrices else 1),
            most_rows=MOST if self.matrices else TILE.rows,
            others=prod(axis.extent for axis in batch),
        )

    def _round(self, product: Product, shared: LoopRef, *, fused: bool) -> list[LoopRef]:
        """Copy the operands of a product, in pairs along its sum, at a parallel loop. Blocks that pad are such copies.

        `fused` says that the copy of the operand in vectors moves to where that is computed.
        Returns the loop over pairs of that copy.
        """
        schedule = self.schedule
        tile = schedule.get_sblock(product.name)
        for operand, along in ((product.broadcast, product.row), (product.vector, product.column)):
            source = schedule.get(tile).reads[operand.read].source
            writers = [b for b in schedule.get_producers(tile) if schedule.get(b).writes[0].source.same_as(source)]
            computed = (self.stages.queries, self.stages.powers)
            pads = [b for b in writers if str(schedule.get(b).name_hint) not in computed]
            copy = pads[0] if pads else schedule.cache_read(tile, operand.read, "global", [tile])
            # Places of dimensions and of loops, counted from the last one.
            moved, paired = (len(operand.indices) - product.dimension(operand, a) for a in (along, product.summed))
            turned = self.matrices and operand is product.broadcast and paired > 1
            if paired > 1:
                outermost = len(operand.indices)
                at = outermost - moved, outermost - paired
                change = moved_last(at[1]) if turned else bfloat16_pairs.in_pairs(*at)
                schedule.transform_layout(copy, ("write", 0), change)
            once = operand is product.broadcast and _are_rounded_once(self.stages, self.lanes)
            if not once:
                schedule.compute_at(copy, shared, preserve_unit_loops=True)
            if fused and operand is product.vector:
                return []
            vector = moved if paired > 1 else paired
            length = int(schedule.get(schedule.get_loops(copy)[-vector]).extent)
            lanes = next(width for width in (*widths(self.lanes), 1) if length % width == 0)
            if turned:
                self._turn(copy, moved, paired, lanes)
            else:
                vectorize(schedule, copy, vector, lanes, paired if paired > 1 else None)
            if once:
                rows = schedule.get_loops(copy)[: -3 if paired > 1 and not turned else -2]
                schedule.parallel(schedule.fuse(*rows) if len(rows) > 1 else rows[0])
        *_, over_pairs, _, _, _ = schedule.get_loops(copy)
        return [over_pairs]

    def _turn(self, copy: BlockRef, row: int, step: int, lanes: int) -> None:
        """Transpose a copy in vectors along rows. Its loops over rows and steps are counted from the innermost one."""
        schedule = self.schedule
        loops = list(schedule.get_loops(copy))
        between = [loop for place, loop in enumerate(loops[::-1], 1) if min(row, step) < place < max(row, step)]
        outer, lane = schedule.split(loops[-row], [None, lanes])
        schedule.reorder(*between, outer, lane, loops[-step])
        Transpose(lanes).put(schedule, lane)

    def _powers_once(self) -> None:
        """Sum the exponentials where they are computed, in vectors. So are their pairs, if any."""
        schedule, stages = self.schedule, self.stages
        powers = schedule.get_sblock(stages.powers)
        *_, row, column = schedule.get_loops(powers)
        row, both = schedule.split(row, [None, bfloat16_pairs.PAIR if self.pairs else 1])
        vector, lane = schedule.split(column, [None, self.lanes])
        schedule.reorder(row, vector, both, lane)
        schedule.unroll(vector)
        schedule.unroll(both)
        schedule.vectorize(lane)
        names = {stages.products.name, *stages.after}
        for reader in schedule.get_consumers(powers):
            name = str(schedule.get(reader).name_hint)
            if name == stages.products.name:
                continue
            schedule.reverse_compute_at(reader, vector, preserve_unit_loops=True)
            if name not in names:
                vectorize(schedule, reader, 1, self.lanes, bfloat16_pairs.PAIR)

    def _vectors(self, block: BlockRef, *, unrolled: bool = False) -> list[LoopRef]:
        """Vectorize a block's columns, in a loop over the sum if there is one. Returns that loop.

        `unrolled` says whether that has few steps.
        """
        schedule = self.schedule
        loops = schedule.get_loops(block)
        summed = loops[-1:] if schedule.get(block).init is not None else []
        vectors, lane = schedule.split(loops[-1 - len(summed)], [None, self.lanes])
        schedule.reorder(*summed, vectors, lane) if summed else None
        for loop in summed if unrolled else ():
            schedule.unroll(loop)
        schedule.unroll(vectors)
        schedule.vectorize(lane)
        return summed

    def _mark_softmax(self) -> None:
        """Annotate the loops over lanes of maxima and of exponentials, if the maxima are subtracted."""
        precision = BFLOAT16 if self.pairs else FLOAT32
        for name in (*self.stages.before, self.stages.powers) if self.bounded else ():
            *_, lane = self.schedule.get_loops(self.schedule.get_sblock(name))
            Softmax(PRECISIONS.index(precision)).put(self.schedule, lane)

    def _transposed(self) -> None:
        """Annotate the loops that transpose queries and outputs."""
        schedule = self.schedule
        Transpose(self.lanes).put(schedule, schedule.get_loops(schedule.get_sblock(self.stages.queries))[-2])
        output = schedule.get_sblock(self.stages.output)
        statement = schedule.get(output)
        (*_, element, column) = statement.body.value.indices
        _, *loops = schedule.get_loops(output)
        places = [
            next(p for p, i in enumerate(statement.iter_vars) if i.var.same_as(index)) for index in (column, element)
        ]
        schedule.reorder(*(loop for p, loop in enumerate(loops) if p not in places), *(loops[p] for p in places))
        Transpose(self.lanes).put(schedule, loops[places[0]])
