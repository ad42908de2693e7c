"""Recognize blocks that multiply and sum, or reduce windows: their axes, operands and what can be vectorized.

Input: a block of a TVM schedule. Output: `Contraction`, or None for other blocks. Dense layers, batch matmuls and
convolutions of every rank, stride, dilation and layout are contractions. Pooling has the same axes, with one operand.
Names of operators are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Buffer, LoopRef, Schedule, TirExpr
from felixlike.frontend.constants import layout_free_parameters
from felixlike.spaces.blocks import are_loops, realize_of


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of the block.

    Attributes:
        place: Position of the loop, 0 for the outermost.
        variable: TVM's variable of the block's iterator.
        extent: Iterations.
        reduced: Whether it is a reduction axis.
    """

    place: int
    variable: Any
    extent: int
    reduced: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor of the product, or what a window reduces: an element of a tensor.

    Attributes:
        read: Position in the block's reads.
        indices: TVM's indices of the element.
        axes: Places of the axes that the indices depend on.
        constant: Whether the tensor is the same in every call.
        copied: Whether the tensor is padded, and therefore copied in every call.
        points: How many of its last dimensions have one element.
    """

    read: int
    indices: tuple[Any, ...]
    axes: frozenset[int]
    constant: bool
    copied: bool = False
    points: int = 0

    def contiguous(self, axis: Axis) -> bool:
        """Return whether a step along the axis leads to the next element in memory."""
        *outer, last = self.indices[: len(self.indices) - self.points]
        step = _tvm.simplify(last - axis.variable)
        return not any(_tvm.uses(index, axis.variable) for index in (*outer, step))


@dataclass(frozen=True, slots=True)
class Contraction:
    """output[spatial axes] += left · right, or the sum or extremum of the elements of a window.

    Attributes:
        axes: All loops of the block, outermost first.
        operands: The two factors, or the one tensor that a window slides over.
        written: For each dimension of the output, the place of the axis that indexes it with stride 1, or None.
        item_bits: Bits of an element of the output.
    """

    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    written: tuple[int | None, ...]
    item_bits: int

    @property
    def spatial(self) -> tuple[Axis, ...]:
        """Return the output's axes, outermost first."""
        return tuple(axis for axis in self.axes if not axis.reduced)

    @property
    def reduction(self) -> tuple[Axis, ...]:
        """Return the reduction axes, outermost first."""
        return tuple(axis for axis in self.axes if axis.reduced)


def read_contraction(schedule: Schedule, block: BlockRef) -> Contraction | None:
    """Return the contraction that a block computes with one loop for each axis, or None for other blocks."""
    return _read(schedule, block, _factors)


def read_window(schedule: Schedule, block: BlockRef) -> Contraction | None:
    """Return what a block computes that reduces windows of one tensor, as pooling does, or None for other blocks."""
    contraction = _read(schedule, block, lambda update: (update.b,))
    if contraction is None or not any(slides(contraction, axis) for axis in contraction.reduction):
        return None
    return contraction


def _factors(update: TirExpr) -> tuple[Any, ...]:
    """Return the factors of a product that is added, or ()."""
    product = bare(update.b)
    is_sum = type(update).__name__ == "Add" and type(product).__name__ == "Mul"
    return (product.a, product.b) if is_sum else ()


def _read(schedule: Schedule, block: BlockRef, elements_of: Callable[[Any], tuple[Any, ...]]) -> Contraction | None:
    """Return the contraction of a block.

    Args:
        schedule: The schedule.
        block: The block.
        elements_of: Returns what is reduced, () for other blocks, from the new value of an output: the sum, maximum or
            minimum of it and something else.
    """
    statement = schedule.get(block)
    loops = schedule.get_loops(block)  # once, since each call is an instruction of the trace
    if statement.init is None or type(statement.body).__name__ != "BufferStore" or not loops:
        return None
    if len(loops) != len(statement.iter_vars) or not _plain(schedule, block, loops):
        return None
    iterators = [v.var for v in statement.iter_vars]
    axes = tuple(
        Axis(place, v.var, int(schedule.get(loop).extent), _tvm.is_reduction(v))
        for place, (loop, v) in enumerate(zip(loops, statement.iter_vars, strict=True))
    )
    target, update = statement.body.buffer, statement.body.value
    if type(update).__name__ not in ("Add", "Max", "Min") or not _loads(update.a, target):
        return None
    factors = elements_of(update)
    if not factors:
        return None
    constants = layout_free_parameters(schedule.mod["main"])
    analyzer = _tvm.sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.variable, _tvm.ir.Range(0, axis.extent))
    operands = []
    for factor in map(bare, factors):
        if type(factor).__name__ != "TensorLoad":
            return None
        reads = [i for i, region in enumerate(statement.reads) if region.source.same_as(factor.source)]
        indices = tuple(analyzer.simplify(index) for index in factor.indices)
        held = frozenset(i for i, v in enumerate(iterators) if any(_tvm.uses(index, v) for index in indices))
        if len(reads) != 1:
            return None
        constant = any(factor.source.same_as(buffer) for buffer in constants)
        sizes = [size.value if isinstance(size, _tvm.tirx.IntImm) else 0 for size in factor.source.shape[1:]]
        points = next((n for n, size in enumerate(reversed(sizes)) if size != 1), len(sizes))
        operands.append(Operand(reads[0], indices, held, constant, points=points))
    written = tuple(
        next((i for i, v in enumerate(iterators) if not _tvm.uses(_tvm.simplify(index - v), v)), None)
        for index in statement.body.indices
    )
    return Contraction(axes, tuple(operands), written, _tvm.bits(target.dtype))


def elements(contraction: Contraction, operand: Operand) -> int:
    """Return how many elements of an operand a contraction reads. Those that several windows share count once."""
    analyzer = _tvm.sym.Analyzer()
    for axis in contraction.axes:
        analyzer.bind(axis.variable, _tvm.ir.Range(0, axis.extent))
    bounds = [analyzer.const_int_bound(index) for index in operand.indices]
    spanned = math.prod(int(bound.max_value) - int(bound.min_value) + 1 for bound in bounds)
    return min(spanned, math.prod(axis.extent for axis in contraction.axes if axis.place in operand.axes))


def slides(contraction: Contraction, axis: Axis) -> bool:
    """Return whether an index combines the axis with one of the other kind, so that a window slides along it."""
    others = [a for a in contraction.axes if a.reduced != axis.reduced]
    indices = [index for operand in contraction.operands for index in operand.indices]
    return any(
        _tvm.uses(index, axis.variable) and any(_tvm.uses(index, other.variable) for other in others)
        for index in indices
    )


def without_groups(schedule: Schedule, block: BlockRef) -> None:
    """Split a block's axis into groups where an index depends on ⌊axis / n⌋.

    for k in 64: Y[k] += X[k // 16, …] · W[k, …]  →  for g in 4, k in 16: Y[g·16 + k] += X[g, …] · W[g·16 + k, …]
    """
    statement = schedule.get(block)
    sizes: dict[int, set[int]] = {}

    for division in _tvm.found(statement.body, _tvm.tirx.FloorDiv):
        for place, iterator in enumerate(statement.iter_vars):
            if division.a.same_as(iterator.var) and type(division.b).__name__ == "IntImm":
                sizes.setdefault(place, set()).add(int(division.b.value))
    groups = {place: divisors.pop() for place, divisors in sizes.items() if len(divisors) == 1}
    extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]
    groups = {p: size for p, size in groups.items() if 1 < size < extents[p] and extents[p] % size == 0}
    if groups:
        mapping = _tvm.tirx.IndexMap.from_func(
            lambda *axes: [part for place, axis in enumerate(axes) for part in _parts(axis, groups.get(place))],
            ndim=len(extents),
            index_dtype=str(statement.iter_vars[0].var.ty.dtype),
        )
        schedule.transform_block_layout(block, mapping)


def without_points(schedule: Schedule, block: BlockRef) -> None:
    """Remove reduction axes of extent 1 from a block.

    TVM's pad_einsum refuses blocks whose indices add such an axis, as those of a 1×1 convolution do.
    """
    statement = schedule.get(block)
    axes = list(zip(statement.iter_vars, schedule.get_loops(block), strict=True))
    is_needed = [_tvm.is_spatial(i) or int(schedule.get(loop).extent) > 1 for i, loop in axes]
    if not all(is_needed) and any(_tvm.is_reduction(i) for (i, _), stays in zip(axes, is_needed, strict=True) if stays):
        mapping = _tvm.tirx.IndexMap.from_func(
            lambda *own: [axis for axis, stays in zip(own, is_needed, strict=True) if stays],
            ndim=len(axes),
            index_dtype=str(statement.iter_vars[0].var.ty.dtype),
        )
        schedule.transform_block_layout(block, mapping)


def _parts(axis: Any, size: int | None) -> tuple[Any, ...]:
    """Return the group and the position in it, or the axis itself if it is not split."""
    return (axis,) if size is None else (axis // size, axis % size)


def _plain(schedule: Schedule, block: BlockRef, loops: Sequence[LoopRef]) -> bool:
    """Return whether the block's iterators are its loops, in order, of known extents, in a perfect nest."""
    realize = realize_of(schedule, block)
    known = all(isinstance(schedule.get(loop).extent, _tvm.tirx.IntImm) for loop in loops)
    return realize is not None and known and are_loops(schedule, realize.iter_values, loops)


def bare(expression: TirExpr) -> Any:
    """Return an expression without its outer casts."""
    while type(expression).__name__ == "Cast":
        expression = expression.value
    return expression


def _loads(expression: TirExpr, buffer: Buffer) -> bool:
    """Return whether an expression is a load of a buffer."""
    return type(expression).__name__ == "TensorLoad" and bool(expression.source.same_as(buffer))
