"""Compute attention in one PrimFunc: scores, softmax and the product with the values.

    X[j, i] = mask(Σ_d K[j, d] · Q[d, i]);  P[j, i] = exp(X[j, i] − max_j X[j, i])
    O[i, d] = (Σ_j V[j, d] · P[j, i]) / Σ_j P[j, i]

Schedules can compute one tile of queries after another, whose scores stay in the cache (`spaces/cpu/query_tiles.py`).
Vectors have neighbouring queries: all stages are stored with the queries last, and queries are padded to whole vectors.
Keys that only pad tiles have scores of -inf. The division comes last, as in PyTorch's kernel for attention on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.codegen.masking import with_mask
from felixlike.hardware import estimate, matrices
from felixlike.hardware.vectors import VectorUnit

Element = Callable[..., Any]
"""(indices of the batch, row, element of the row) → element of queries, keys or values."""

MOST_PADDED = 1.15
"""Upper limit of queries after padding to vectors, per query. Chosen by hand: the parts pad axes at lower costs."""

_ITEM_BITS = 32
"""Bits of the elements of attention in one kernel."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Describe the sizes of attention.

    Attributes:
        batch: Extents of the batch dimensions.
        queries: Number of queries.
        keys: Number of keys, and of values.
        depth: Elements of a query, and of a key.
        width: Elements of a value.
        unit: Vector unit of the target.
        pairs: Whether products may be computed in pairs of bfloat16 numbers.
        tiles: Whether an instruction then multiplies matrices of them.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    width: int
    unit: VectorUnit
    pairs: bool = False
    tiles: bool = False

    @property
    def vectors(self) -> int:
        """Vectors of queries after padding: one more if that has better tiles, as an odd number has few."""
        count, registers = -(-self.queries // self.unit.lanes(_ITEM_BITS)), self.unit.registers
        if self.tiles:  # two matrices of keys and two of queries load half as much as others
            even = count + count % 2
            return even if even * self.unit.lanes(_ITEM_BITS) <= MOST_PADDED * self.queries else count
        return min((count, count + 1), key=lambda number: estimate.padded_tiles(self.keys, 12, number, 1, registers))

    @property
    def columns(self) -> int:
        """Number of queries after padding."""
        return self.vectors * self.unit.lanes(_ITEM_BITS)

    @property
    def rows(self) -> int:
        """Number of keys after padding, which are rows of one product, and summed in pairs in the other."""
        if self.tiles:
            return matrices.filling(self.keys, _steps_of_keys, 2)
        return self._padded(self.keys, all_rows=False)

    @property
    def elements(self) -> int:
        """Elements of a value after padding. In float32, rows of a tile that do not exist are not computed."""
        if self.tiles:
            return matrices.filling(self.width, lambda width: width / matrices.fitting(width))
        return self._padded(self.width, all_rows=self.pairs)

    @property
    def summed(self) -> int:
        """Number of values that are summed: those of keys that only pad are 0."""
        return self.rows if self.tiles else self.keys

    def _padded(self, extent: int, *, all_rows: bool) -> int:
        """Pad the rows of register tiles. `all_rows` says whether tiles compute the rows that only pad, too."""
        multiple = estimate.multiple_of_rows(extent, self.vectors, 1, self.unit.registers, all_rows=all_rows)
        return -(-extent // multiple) * multiple


def _steps_of_keys(keys: int) -> float:
    """Return the time of attention for some keys. Chosen by hand: the softmax takes 12 times as long as the products
    with full matrices."""
    return 3 * keys + 2 * keys / matrices.fitting(keys) + 2 * keys / matrices.fitting(keys // 2)


@dataclass(frozen=True, slots=True)
class Operands:
    """Functions that return elements of the inputs.

    Attributes:
        query: Element of a query.
        key: Element of a key.
        value: Element of a value.
        masked: (indices of the batch, key, query, score) → what the softmax is computed from, None for the score.
        factor: Factor of every score.
    """

    query: Element
    key: Element
    value: Element
    masked: Callable[[Sequence[Any], Any, Any, Any], Any] | None
    factor: float


def attention(sizes: Sizes, operands: Operands, *, safe: bool) -> Any:
    """Return attention as a TVM tensor of the shape (*batch, padded elements of a value, padded queries).

    safe: whether rows of only -inf give 0 instead of NaN.
    """
    stages, columns = _Stages(sizes.batch), sizes.columns
    key = stages.padded("keys", operands.key, (sizes.keys, sizes.depth), (sizes.rows, sizes.depth))
    value = stages.padded("values", operands.value, (sizes.keys, sizes.width), (sizes.summed, sizes.elements))
    query = stages.padded(
        "queries",
        lambda b, d, i: operands.query(b, i, d) * _number(operands.factor),
        (sizes.depth, sizes.queries),
        (sizes.depth, columns),
        always=True,
    )
    plain = stages.reduced(
        "scores", (sizes.rows, columns), sizes.depth, _tvm.te.sum, lambda b, d, j, i: key(b, j, d) * query(b, d, i)
    )

    def masked(b: Sequence[Any], j: Any, i: Any) -> Any:
        score = plain(*b, j, i) if operands.masked is None else operands.masked(b, j, i, plain(*b, j, i))
        return score if sizes.rows == sizes.keys else with_mask(j < sizes.keys, score)

    changed = operands.masked is not None or sizes.rows > sizes.keys
    scores = stages.plain("masked", (sizes.rows, columns), masked) if changed else plain
    powers, shares = _softmax(stages, scores, (sizes.rows, columns), safe=safe)
    products = stages.reduced(
        "products",
        (sizes.elements, columns),
        sizes.summed,
        _tvm.te.sum,
        lambda b, j, d, i: value(b, j, d) * powers(*b, j, i),
    )
    return stages.plain("weighted", (sizes.elements, columns), lambda b, d, i: products(*b, d, i) * shares(*b, i))


def _softmax(stages: _Stages, scores: Any, extents: tuple[int, int], *, safe: bool) -> tuple[Any, Any]:
    """Return exp(score − maximum) of every score, and the reciprocals of the sums of these over the keys."""
    (rows, columns), select = extents, _tvm.tirx.Select
    largest = stages.reduced("largest", (columns,), rows, _tvm.te.max, lambda b, j, i: scores(*b, j, i))

    def power(b: Sequence[Any], j: Any, i: Any) -> Any:
        most = largest(*b, i)
        none = select(most == _number(-math.inf), _number(0.0), most) if safe else most
        return _tvm.te.exp(scores(*b, j, i) - none)

    powers = stages.plain("powers", extents, power)
    totals = stages.reduced("totals", (columns,), rows, _tvm.te.sum, lambda b, j, i: powers(*b, j, i))

    def share(b: Sequence[Any], i: Any) -> Any:
        total = totals(*b, i)
        return _number(1.0) / (select(total == _number(0.0), _number(1.0), total) if safe else total)

    return powers, stages.plain("shares", (columns,), share)


@dataclass(frozen=True, slots=True)
class _Stages:
    """Define tensors with common batch dimensions.

    Attributes:
        batch: Extents of the batch dimensions.
    """

    batch: tuple[int, ...]

    def plain(self, name: str, extents: Sequence[int], element: Callable[..., Any]) -> Any:
        """Return the tensor of (indices of the batch, others) → element."""
        count = len(self.batch)
        return _tvm.te.compute([*self.batch, *extents], lambda *at: element(at[:count], *at[count:]), name=name)

    def reduced(self, name: str, extents: Sequence[int], steps: int, combine: Any, element: Callable[..., Any]) -> Any:
        """Return the tensor that combines (indices of the batch, step, others) → element over all steps."""
        step = _tvm.te.reduce_axis((0, steps), name="step")
        return self.plain(name, extents, lambda b, *at: combine(element(b, step, *at), axis=step))

    def padded(
        self, name: str, read: Element, extents: tuple[int, int], larger: tuple[int, int], *, always: bool = False
    ) -> Element:
        """Return a function that reads elements of a tensor of larger extents, which is padded with zeros.

        always: whether there is a tensor even if the extents are equal.
        """
        if extents == larger and not always:
            return read

        def element(b: Sequence[Any], *at: Any) -> Any:
            tests = [index < extent for index, extent, more in zip(at, extents, larger, strict=True) if extent < more]
            value = read(b, *at)
            return _tvm.tirx.if_then_else(_tvm.tirx.all(*tests), value, _number(0.0)) if tests else value

        tensor = self.plain(name, larger, element)
        return lambda b, *at: tensor(*b, *at)


def _number(value: float) -> Any:
    """Return a constant in float32."""
    return _tvm.tirx.const(value, "float32")


def padded_mask(mask: Any, sizes: Sizes) -> Any:
    """Return a mask with the queries last, and with queries and keys padded. Dimensions of one element stay."""
    *batch, queries, keys = mask_shape(mask.shape)
    rows, columns = (keys if keys == 1 else sizes.rows), (queries if queries == 1 else sizes.columns)

    def element(*at: Any) -> Any:
        *b, j, i = at
        value = mask(*[*b, i, j][-len(mask.shape) :])
        tests = [test for test, few, many in ((i < queries, queries, columns), (j < keys, keys, rows)) if few < many]
        zero = _tvm.tirx.const(0, mask.dtype)
        return _tvm.tirx.if_then_else(_tvm.tirx.all(*tests), value, zero) if tests else value

    return _tvm.te.compute([*batch, rows, columns], element, name="mask")


def mask_shape(extents: Sequence[Any]) -> list[int]:
    """Return the shape of a mask with two dimensions at least."""
    return [1] * (2 - len(extents)) + [int(size) for size in extents]
