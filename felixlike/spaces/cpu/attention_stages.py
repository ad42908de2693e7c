"""Recognize attention in a function's blocks: two contractions, and a softmax between them.

Input: a schedule and its stages. Output: `AttentionStages`, or None for other functions. Names of operators are not
used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, Schedule
from felixlike.hardware import Device, matrices
from felixlike.spaces.contraction import Axis, Contraction, Operand, read_contraction
from felixlike.spaces.cpu import bfloat16_pairs
from felixlike.spaces.stages import Stage, stages_of

ITEM_BITS = 32
"""Bits of the elements of attention that this rule is for."""


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction with vectors along its last spatial axis.

    Attributes:
        name: Name of the block.
        contraction: Its axes: the batch, rows, columns and the sum.
        vector: The operand in vectors.
        broadcast: The operand without vectors.
        shared: Buffer of the operand in vectors.
        single: Buffer of the operand without vectors.
    """

    name: str
    contraction: Contraction
    vector: Operand
    broadcast: Operand
    shared: Any
    single: Any

    def dimension(self, operand: Operand, axis: Axis) -> int:
        """Return the dimension of an operand along which an axis leads to the next element, -1 without one."""
        using = [d for d, index in enumerate(operand.indices) if _tvm.uses(index, axis.variable)]
        if len(using) != 1 or _tvm.uses(_tvm.simplify(operand.indices[using[0]] - axis.variable), axis.variable):
            return -1
        return using[0]

    @property
    def matrix(self) -> tuple[int, int]:
        """The rows of its matrices, and the pairs in a row."""
        return matrices.fitting(self.row.extent), matrices.fitting(self.summed.extent // bfloat16_pairs.PAIR)

    @property
    def summed(self) -> Axis:
        """The reduction axis."""
        return self.contraction.reduction[0]

    @property
    def row(self) -> Axis:
        """The axis of the tile's rows."""
        return self.contraction.spatial[-2]

    @property
    def column(self) -> Axis:
        """The axis of the vectors."""
        return self.contraction.spatial[-1]


@dataclass(frozen=True, slots=True)
class AttentionStages:
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
    scores: Product
    masked: str | None
    before: tuple[str, ...]
    powers: str
    after: tuple[str, ...]
    products: Product
    weighted: str
    output: str


def products_of(schedule: Schedule, device: Device) -> list[Product]:
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
        lanes = device.unit.lanes(ITEM_BITS)
        if plain and contraction.item_bits == ITEM_BITS and column.extent % lanes == 0 and len(by_column) == 2:
            operands = [by_column[has] for has in (True, False)]
            buffers = [probe.get(block).reads[operand.read].source for operand in operands]
            found.append(Product(stage.name, contraction, *operands, *buffers))
    return found


def read_attention(stages: Sequence[Stage], products: Sequence[Product]) -> AttentionStages | None:
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
    return AttentionStages(
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


def subtracts_maxima(schedule: Schedule, stages: AttentionStages) -> bool:
    """Return whether the powers are exp(X − M), M the maxima of X along an axis: then X − M is at most 0, or NaN.

    M may be replaced by 0 where it is -inf.
    """
    power, maximum = (schedule.get(schedule.get_sblock(name)) for name in (stages.powers, stages.before[0]))
    loads = {load.source: load for load in _tvm.found(power.body.value, _tvm.ir.TensorLoad)}
    most = loads.pop(maximum.body.buffer, None)
    if most is None or [str(load.ty.dtype) for load in (most, *loads.values())] != ["float32", "float32"]:
        return False
    (score,) = loads.values()
    lowest, zero = (_tvm.tirx.const(value, "float32") for value in (-math.inf, 0.0))
    unless_lowest = _tvm.tirx.Select(_tvm.tirx.EQ(most, lowest), zero, most)
    differences = (_tvm.tirx.Sub(score, subtracted) for subtracted in (most, unless_lowest))
    subtracts = any(_tvm.structural_equal(power.body.value, _tvm.tirx.exp(each)) for each in differences)
    return subtracts and _is_maximum(maximum, score, most.indices)


def _is_maximum(maximum: Block, score: Any, at: Sequence[Any]) -> bool:
    """Return whether a block's result at some indices is the maximum of a row that contains a score."""
    store = maximum.body
    compared = store.value.b if isinstance(store.value, _tvm.tirx.Max) else None
    reduced = [iterator for iterator in maximum.iter_vars if _tvm.is_reduction(iterator)]
    if not isinstance(compared, _tvm.ir.TensorLoad) or not compared.source.same_as(score.source) or len(reduced) != 1:
        return False
    (row,) = reduced
    places = [place for place, index in enumerate(compared.indices) if index.same_as(row.var)]
    if len(places) != 1 or not all(isinstance(index, _tvm.tirx.Var) for index in store.indices):
        return False
    (place,) = places
    values = {**dict(zip(store.indices, at, strict=True)), row.var: score.indices[place]}
    whole = _tvm.simplify(row.dom.extent - score.source.shape[place])
    same = bool(_tvm.structural_equal(_tvm.substituted(compared, values), score))
    return same and _tvm.structural_equal(whole, _tvm.tirx.const(0, str(whole.ty.dtype)))


def _name(stage: Stage | None) -> str | None:
    """Return the name of a stage, if there is one."""
    return None if stage is None else stage.name
