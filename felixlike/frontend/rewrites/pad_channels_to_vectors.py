"""Convolutions compute some channels or columns more than they are asked for, where vectors and tiles are full then.

    conv(x, w)   →   conv(pad(x, columns), pad(w, channels))[: channels, …, : columns]

113 channels or 29 columns are no multiple of a vector, 17 no multiple of any number of rows that a register tile may
have; 128, 32 and 18 are. Schedules pad plain products (`spaces/padding.py`), but TVM has no primitive that pads what
windows slide over. So it is done in the graph: constant weights are padded now, columns by the convolution's own
padding, and the epilogue of the kernel writes only what was asked for.
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
from felixlike.hardware.vectors import MOST_ROWS, MOST_VECTORS, SHORTEST, UNROLLED_TAPS, VectorUnit

_CONVOLUTIONS = {f"nn.conv{rank}d" for rank in (1, 2, 3)}

_GAIN = 0.85
"""Of the estimated time, at most, must be left.  Chosen by hand, as the estimate leaves out what is cut off again."""

_WIDER = 1.3
"""Columns of a convolution in groups at most, for each it was asked for: it moves as much as it computes.  Chosen by
hand: no benchmark compares other values."""


def with_room(module: Any, unit: VectorUnit) -> Any:
    """A Relax module whose convolutions with constant weights fill the vectors and tiles of a vector unit better."""
    return rewritten(module, lambda expression, _, rewriter: _roomier(expression, rewriter, unit))


@dataclass(frozen=True, slots=True)
class Convolution:
    """What its time depends on.

    channels: of the output, in each group.  groups: of channels; alike: whether neighbouring groups are neighbours in
    memory, each of one channel.  columns: the innermost dimension of the output that is more than one; contiguous:
    whether they, and what they read, are neighbours in memory.  rows: the dimension around columns; 1 where there is
    none.  taps: of the window's last dimension."""

    channels: int
    groups: int
    alike: bool
    columns: int
    contiguous: bool
    rows: int
    taps: int

    def time(self, unit: VectorUnit, lanes: int) -> float:
        """Multiplications of vectors for a tap, a row and an input channel, and what tiles that do not fit add."""
        count = self.channels * self.groups * self.columns
        most = unit.registers // 2 if 1 < self.taps <= UNROLLED_TAPS else unit.registers * 3 // 4
        choices = [
            ((-width, in_columns), count / width * _hindrance(vectors // width, rows, most))
            for in_columns, vectors, rows in self._axes()
            if (width := _width(vectors, lanes))
        ]
        return min(choices)[1] if choices else count / min(estimate.ONE_BY_ONE, lanes)

    def _axes(self) -> Iterator[tuple[int, int, int]]:
        """(rank, extent, rows) of each axis that may lie in vectors, as `roles.choose_roles` ranks them."""
        if self.contiguous:
            yield 0, self.columns, self.channels if self.channels > 1 else self.rows
        if self.channels > 1 or self.alike:
            yield 1, self.groups if self.alike else self.channels, self.columns


@cache
def _hindrance(vectors: int, rows: int, most: int) -> float:
    """How much longer than its arithmetic the best tile takes."""
    tiles = product(_divisors(vectors, MOST_VECTORS), _divisors(rows, MOST_ROWS))
    return min(estimate.hindrance(r, v) for v, r in tiles if v * r <= most)


def _divisors(extent: int, most: int) -> list[int]:
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0]


def _width(extent: int, lanes: int) -> int:
    """The longest vector, of `SHORTEST` elements at least, that divides an extent; 0 where there is none."""
    width = min(lanes, extent & -extent)
    return width if width >= min(SHORTEST, lanes) else 0


def _roomier(expression: Any, rewriter: Rewriter, unit: VectorUnit) -> Any:
    if operator(expression) not in _CONVOLUTIONS or not is_constant(expression.args[1]) or _is_plain(expression):
        return None
    dtype = str(expression.ty.dtype)
    if not dtype.startswith("float"):
        return None
    lanes = unit.lanes(_tvm.bits(dtype))
    convolution, dimension = _read(expression)
    channels, columns = convolution.channels, convolution.columns
    best = min(
        (
            replace(convolution, channels=channels + more, columns=columns + wider)
            for more in (range(lanes) if convolution.groups == 1 else range(1))
            for wider in range(lanes)
            if convolution.groups == 1 or columns + wider <= _WIDER * columns
        ),
        key=lambda c: (c.time(unit, lanes), c.channels * c.columns),
    )
    if best.time(unit, lanes) > _GAIN * convolution.time(unit, lanes):
        return None
    return _padded(expression, rewriter, dimension, best.channels - channels, best.columns - columns)


def _is_plain(call: Any) -> bool:
    """Whether no window slides: schedules can pad that themselves."""
    attrs = call.attrs
    moves = any(int(stride) != 1 for stride in attrs.strides) or any(int(width) for width in attrs.padding)
    taps = [n for n, axis in zip(shape(call.args[1]), str(attrs.kernel_layout), strict=True) if axis not in "OI"]
    return not moves and max(taps) == 1


def _read(call: Any) -> tuple[Convolution, int]:
    """What a convolution is like, and which dimension of its output its columns are."""
    attrs, layout, groups = call.attrs, str(call.attrs.data_layout), int(call.attrs.groups)
    output, data, weights = shape(call), shape(call.args[0]), shape(call.args[1])
    places = [i for i, axis in enumerate(layout) if axis not in "NC"]
    dimension = next((i for i in reversed(places) if output[i] > 1), places[-1])
    around = [output[i] for i, axis in enumerate(layout[:dimension]) if axis != "C" and output[i] > 1]
    channels, inputs = output[layout.index("C")] // groups, data[layout.index("C")] // groups
    convolution = Convolution(
        channels=channels,
        groups=groups,
        alike=groups > 1 and channels == inputs == 1 and layout.endswith("C"),
        columns=output[dimension],
        contiguous=int(attrs.strides[places.index(dimension)]) == 1 and all(n == 1 for n in data[dimension + 1 :]),
        rows=around[-1] if around else 1,
        taps=[n for n, axis in zip(weights, str(attrs.kernel_layout), strict=True) if axis not in "OI"][-1],
    )
    return convolution, dimension


def _padded(call: Any, rewriter: Rewriter, dimension: int, channels: int, columns: int) -> Any:
    """What a call computes, from one that computes some channels and columns more."""
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
