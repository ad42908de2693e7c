"""Pad channels or columns of convolutions, so that they fill vectors and tiles.

    conv(x, w)   →   conv(pad(x, columns), pad(w, channels))[: channels, …, : columns]

113 channels or 29 columns are not a multiple of a vector, and 17 is not a multiple of any number of rows that a
register tile may have. 128, 32 and 18 are. Schedules pad plain products (`spaces/padding.py`), but TVM has no
primitive that pads the operand of a sliding window. So the graph is changed: constant weights are padded now, columns
by the convolution's own padding, and the kernel's epilogue writes only the original elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import (
    Rewriter,
    constant,
    is_constant,
    operator,
    rewritten,
    shape,
    with_attributes,
)
from felixlike.hardware import estimate
from felixlike.hardware.vectors import SHORTEST, TILE, VectorUnit

_CONVOLUTIONS = {f"nn.conv{rank}d" for rank in (1, 2, 3)}

_GAIN = 0.85
"""Upper limit of the padded convolution's estimated time, as a fraction of the original's.

Chosen by hand, since the estimate ignores the slicing.
"""

_WIDER = 1.3
"""Upper limit of columns of a grouped convolution, per original column: it moves as much as it computes.

Chosen by hand: no benchmark compares other values.
"""


def with_room(module: Any, unit: VectorUnit) -> Any:
    """Pad the convolutions with constant weights that fill the vectors and tiles of a vector unit better then.

    Args:
        module: Relax IRModule with operators.
        unit: Vector unit of the target.

    Returns:
        The rewritten module.
    """
    return rewritten(module, lambda expression, _, rewriter: _roomier(expression, rewriter, unit))


@dataclass(frozen=True, slots=True)
class Convolution:
    """Describe the extents on which a convolution's time depends.

    Attributes:
        channels: Output channels of each group.
        groups: Number of groups.
        alike: Whether groups have one channel each and are adjacent in memory.
        columns: Extent of the innermost output dimension that is larger than one.
        contiguous: Whether columns, and the elements that they read, are adjacent in memory.
        rows: Extent of the dimension around columns, 1 without one.
        taps: Taps of the window's last dimension.
    """

    channels: int
    groups: int
    alike: bool
    columns: int
    contiguous: bool
    rows: int
    taps: int

    def time(self, unit: VectorUnit, lanes: int) -> float:
        """Return the vector multiplications per tap, row and input channel.

        The overhead of tiles that do not fit is included.
        """
        count = self.channels * self.groups * self.columns
        most = unit.registers // 2 if 1 < self.taps <= TILE.unrolled_taps else unit.registers * 3 // 4
        choices = [
            ((-width, in_columns), count / width * _hindrance(vectors // width, rows, most))
            for in_columns, width, vectors, rows in self._vectors(lanes)
        ]
        return min(choices)[1] if choices else count / min(estimate.COSTS.one_by_one, lanes)

    def fills_vectors(self, lanes: int) -> bool:
        """Return whether an axis consists of vectors, so that a rule applies."""
        return any(self._vectors(lanes))

    def _vectors(self, lanes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (rank, vector length, elements, rows) of each axis that consists of vectors."""
        for in_columns, elements, rows in self._axes():
            if width := _width(elements, lanes):
                yield in_columns, width, elements, rows

    def _axes(self) -> Iterator[tuple[int, int, int]]:
        """Yield (rank, extent, rows) of each axis that can be vectorized, as `roles.choose_roles` ranks them."""
        if self.contiguous:
            yield 0, self.columns, self.channels if self.channels > 1 else self.rows
        if self.channels > 1 or self.alike:
            yield 1, self.groups if self.alike else self.channels, self.columns


@cache
def _hindrance(vectors: int, rows: int, most: int) -> float:
    """Return how much longer than its arithmetic the best tile takes."""
    tiles = product(_divisors(vectors, TILE.vectors), _divisors(rows, TILE.rows))
    return min(estimate.hindrance(r, v) for v, r in tiles if v * r <= most)


def _divisors(extent: int, most: int) -> list[int]:
    """Return the divisors of an extent up to a limit."""
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0]


def _width(extent: int, lanes: int) -> int:
    """Return the longest vector of at least `SHORTEST` elements that divides an extent, or 0."""
    width = min(lanes, extent & -extent)
    return width if width >= min(SHORTEST, lanes) else 0


def _roomier(expression: Any, rewriter: Rewriter, unit: VectorUnit) -> Any:
    """Return the padded convolution, or None if the estimated gain is too small."""
    if operator(expression) not in _CONVOLUTIONS or not is_constant(expression.args[1]) or _is_plain(expression):
        return None
    dtype = str(expression.ty.dtype)
    if not dtype.startswith("float"):
        return None
    lanes = unit.lanes(_tvm.bits(dtype))
    convolution, dimension = _read(expression)
    channels, columns = convolution.channels, convolution.columns
    padded = (
        replace(convolution, channels=channels + more, columns=columns + wider)
        for more in (range(lanes) if convolution.groups == 1 else range(1))
        for wider in range(lanes)
        if convolution.groups == 1 or columns + wider <= _WIDER * columns
    )
    best = min(
        (c for c in padded if c.fills_vectors(lanes)),
        key=lambda c: (c.time(unit, lanes), c.channels * c.columns),
        default=convolution,
    )
    if best.time(unit, lanes) > _GAIN * convolution.time(unit, lanes):
        return None
    return _padded(expression, rewriter, dimension, best.channels - channels, best.columns - columns)


def _is_plain(call: Any) -> bool:
    """Return whether the convolution has no sliding window, so that schedules can pad it."""
    attrs = call.attrs
    moves = any(int(stride) != 1 for stride in attrs.strides) or any(int(width) for width in attrs.padding)
    taps = [n for n, axis in zip(shape(call.args[1]), str(attrs.kernel_layout), strict=True) if axis not in "OI"]
    return not moves and max(taps) == 1


def _read(call: Any) -> tuple[Convolution, int]:
    """Return the description of a convolution, and the dimension of its output that columns are."""
    attrs, layout, groups = call.attrs, str(call.attrs.data_layout), int(call.attrs.groups)
    output, data, weights = shape(call), shape(call.args[0]), shape(call.args[1])
    places = [i for i, axis in enumerate(layout) if axis not in "NC"]
    dimension = next((i for i in reversed(places) if output[i] > 1), places[-1])
    outer = [output[i] for i, axis in enumerate(layout[:dimension]) if axis != "C" and output[i] > 1]
    channels, inputs = output[layout.index("C")] // groups, data[layout.index("C")] // groups
    convolution = Convolution(
        channels=channels,
        groups=groups,
        alike=groups > 1 and channels == inputs == 1 and layout.endswith("C"),
        columns=output[dimension],
        contiguous=int(attrs.strides[places.index(dimension)]) == 1 and all(n == 1 for n in data[dimension + 1 :]),
        rows=outer[-1] if outer else 1,
        taps=[n for n, axis in zip(weights, str(attrs.kernel_layout), strict=True) if axis not in "OI"][-1],
    )
    return convolution, dimension


def _padded(call: Any, rewriter: Rewriter, dimension: int, channels: int, columns: int) -> Any:
    """Return a slice of a convolution that computes `channels` and `columns` more."""
    import numpy as np

    attrs, layout = call.attrs, str(call.attrs.data_layout)
    weights, padding = call.args[1].value.numpy(), [int(width) for width in attrs.padding]
    filters = [(0, channels if axis == "O" else 0) for axis in str(attrs.kernel_layout)]
    spatial = [i for i, axis in enumerate(layout) if axis not in "NC"].index(dimension)
    padding[len(padding) // 2 + spatial] += columns * int(attrs.strides[spatial])
    arguments = [rewriter.new(call.args[0]), constant(np.pad(weights, filters))]
    larger = rewriter.builder.emit(with_attributes(call, arguments, padding=padding))
    cut = [axis for axis, more in ((layout.index("C"), channels), (dimension, columns)) if more]
    return _tvm.relax.op.strided_slice(larger, cut, [0] * len(cut), [shape(call)[axis] for axis in cut])
