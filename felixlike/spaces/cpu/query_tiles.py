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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, LoopRef, Schedule
from felixlike.codegen.annotations import Guard, Keys, Transpose
from felixlike.codegen.masking import comparisons
from felixlike.hardware import Device
from felixlike.hardware.vectors import TILE
from felixlike.spaces.contraction import Contraction, read_contraction
from felixlike.spaces.cpu.register_bounds import Extents, note_bounds, reachable_bounds
from felixlike.spaces.stages import Stage, in_plain_nests, stages_of

_ITEM_BITS = 32
"""Bits of the elements of attention that this rule is for."""


def query_tiles(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return new schedules of a function with two contractions and a softmax between them, or [] for other functions.

    Args:
        schedule: The schedule of the whole function. It is not changed.
        block: Block that MetaSchedule visits. The rule applies at the root block only.
        device: The device, whose vectors divide the last axis of both contractions.
    """
    if schedule.get_sref(block).parent is not None or not in_plain_nests(schedule):
        return []
    stages = _stages(stages_of(schedule), _products(schedule, device))
    if stages is None:
        return []
    schedules = [schedule.copy(), schedule.copy()]
    for new, together in zip(schedules, (True, False), strict=True):
        _Tiles(new, stages, device).apply(together=together)
    return schedules


@dataclass(frozen=True, slots=True)
class _Product:
    """A contraction with vectors along its last spatial axis.

    Attributes:
        name: Name of the block.
        contraction: Its axes: the batch, rows, columns and the sum.
        shared: Buffer of the operand in vectors.
        single: Buffer of the operand without vectors.
    """

    name: str
    contraction: Contraction
    shared: Any
    single: Any


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of attention.

    Attributes:
        padding: Names of the blocks that pad keys and values, None for those without.
        queries: Name of the block that transposes the queries.
        scores: Contraction of keys and queries.
        masked: Name of the elementwise block that alone reads the scores, if there is one.
        before: Names of the blocks that the powers depend on, after the scores.
        powers: Name of the block of the exponentials.
        after: Names of the blocks of the sums and their reciprocals.
        products: Contraction of values and powers.
        weighted: Name of the elementwise block that alone reads the products.
        output: Name of the block that transposes the products.
    """

    padding: tuple[str | None, str | None]
    queries: str
    scores: _Product
    masked: str | None
    before: tuple[str, ...]
    powers: str
    after: tuple[str, ...]
    products: _Product
    weighted: str
    output: str


def _products(schedule: Schedule, device: Device) -> list[_Product]:
    """Return the contractions of a function that have full vectors along their last spatial axis, in one operand."""
    found = []
    probe = schedule.copy()
    for stage in stages_of(probe):
        block = probe.get_sblock(stage.name)
        contraction = read_contraction(probe, block) if stage.reduced else None
        if contraction is None or len(contraction.reduction) != 1 or len(contraction.spatial) < 2:
            continue
        column = contraction.spatial[-1]
        by_column = {column.place in operand.axes: operand for operand in contraction.operands}
        plain = contraction.written == tuple(range(len(contraction.spatial)))
        lanes = device.unit.lanes(_ITEM_BITS)
        if plain and contraction.item_bits == _ITEM_BITS and column.extent % lanes == 0 and len(by_column) == 2:
            buffers = [probe.get(block).reads[by_column[has].read].source for has in (True, False)]
            found.append(_Product(stage.name, contraction, *buffers))
    return found


def _stages(stages: Sequence[Stage], products: Sequence[_Product]) -> _Stages | None:
    """Return the stages of attention, or None for other functions."""
    writer = {buffer: stage for stage in stages for buffer, _ in stage.writes}

    def readers(stage: Stage) -> list[Stage]:
        return [s for s in stages if any(r.same_as(w) for r, _ in s.reads for w, _ in stage.writes)]

    if len(products) != 2:
        return None
    scores, values = products
    by_name = {stage.name: stage for stage in stages}
    queries, powers = writer.get(scores.shared), writer.get(values.shared)
    results = readers(by_name[values.name])
    outputs = readers(results[0]) if len(results) == 1 else []
    if queries is None or powers is None or len(outputs) != 1 or not outputs[0].output:
        return None
    padding = [writer.get(product.single) for product in products]
    combined = readers(by_name[scores.name])
    masked = combined[0] if len(combined) == 1 and not combined[0].reduced else None
    named = [queries, powers, results[0], outputs[0], *(s for s in (masked, *padding) if s is not None)]
    names = {s.name for s in named} | {scores.name, values.name}
    others = [stage for stage in stages if stage.name not in names]
    before = tuple(s.name for s in others if any(r.name == powers.name for r in readers(s)))
    after = tuple(s.name for s in others if s.name not in before)
    elementwise = not any(stage.reduced for stage in named)
    if not elementwise or len(names) != len(named) + 2 or len(before) != 1 or len(after) != 2:
        return None
    return _Stages(
        (_name(padding[0]), _name(padding[1])),
        queries.name,
        scores,
        _name(masked),
        before,
        powers.name,
        after,
        values,
        results[0].name,
        outputs[0].name,
    )


def _name(stage: Stage | None) -> str | None:
    """Return the name of a stage, if there is one."""
    return None if stage is None else stage.name


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Apply the primitives to the stages of attention.

    Attributes:
        schedule: The schedule, which is changed.
        stages: Its stages.
        device: The device.
    """

    schedule: Any
    stages: _Stages
    device: Device

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.device.unit.lanes(_ITEM_BITS)

    def apply(self, *, together: bool) -> None:
        """Tile all stages, in one parallel loop or in three."""
        schedule, stages = self.schedule, self.stages
        block = schedule.get_sblock
        for name in stages.padding:
            if name is not None:
                schedule.compute_inline(block(name))
        scores, weighted = block(stages.scores.name), block(stages.weighted)
        masked = block(stages.masked) if stages.masked else schedule.cache_write(scores, 0, "global")
        hides = self._hides_keys(masked)
        shared, *tile = self._parallel(weighted)
        schedule.reverse_compute_at(block(stages.output), shared, preserve_unit_loops=True)
        _, over_keys = self._register_tile(stages.products, tile, guarded=stages.padding[1] is not None)
        for name in reversed(stages.after) if together else ():
            schedule.compute_at(block(name), shared, preserve_unit_loops=True)
        if together:
            schedule.compute_at(block(stages.powers), shared, preserve_unit_loops=True)
            self._vectors(block(stages.powers))
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
        tiles, terms = self._register_tile(stages.scores, tile, guarded=stages.padding[0] is not None)
        schedule.compute_at(block(stages.queries), shared, preserve_unit_loops=True)
        summed = [loop for name in (*stages.before, *stages.after) for loop in self._vectors(block(name))]
        # The loops of one parallel loop have the same queries. Otherwise, all scores must be -inf or a number.
        bounded = [tiles, schedule.get_loops(block(stages.powers))[-3]] if together else [terms]
        for loop in (over_keys, *summed, *bounded) if hides else ():
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
        outer, inner = schedule.split(vectors, schedule.sample_perfect_tile(vectors, 2, TILE.vectors))
        schedule.reorder(*batch, outer, rows, inner, lane)
        shared = schedule.fuse(*batch, outer) if batch else outer
        schedule.parallel(shared)
        return [shared, rows, inner, lane]

    def _register_tile(self, product: _Product, tile: Sequence[LoopRef], *, guarded: bool) -> tuple[LoopRef, LoopRef]:
        """Compute a product in register tiles at the loops over rows, vectors and lanes of the block that reads it.

        Returns the loop over tiles of rows and the loop over the terms of the sum.
        """
        schedule, block = self.schedule, self.schedule.get_sblock(product.name)
        rows, vectors, lane = tile
        outer, row = schedule.split(rows, schedule.sample_perfect_tile(rows, 2, TILE.rows))
        schedule.compute_at(block, outer, preserve_unit_loops=True)
        *_, own_row, columns, summed = schedule.get_loops(block)
        own_vectors, own_lane = schedule.split(columns, [None, self.lanes])
        schedule.reorder(summed, own_row, own_vectors, own_lane)
        for loop in (row, vectors, own_row, own_vectors):
            schedule.unroll(loop)
        for loop in (lane, own_lane):
            schedule.vectorize(loop)
        if guarded:
            Guard().put(schedule, summed)
        *batch, row_axis, column = product.contraction.spatial
        extents = Extents(
            vectors=column.extent // self.lanes,
            most_vectors=TILE.vectors,
            rows=row_axis.extent,
            most_rows=TILE.rows,
            others=prod(axis.extent for axis in batch),
        )
        note_bounds(
            schedule, block, reachable_bounds(extents, registers=self.device.unit.registers, unrolled=False, cores=1)
        )
        return outer, summed

    def _vectors(self, block: BlockRef) -> list[LoopRef]:
        """Vectorize a block's columns, in a loop over the sum if there is one. Returns that loop."""
        schedule = self.schedule
        loops = schedule.get_loops(block)
        summed = loops[-1:] if schedule.get(block).init is not None else []
        vectors, lane = schedule.split(loops[-1 - len(summed)], [None, self.lanes])
        schedule.reorder(*summed, vectors, lane) if summed else None
        schedule.unroll(vectors)
        schedule.vectorize(lane)
        return summed

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
