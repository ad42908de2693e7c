"""Compute convolutions as products of transformed tiles where that is faster (Winograd's fast convolutions).

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        d: a tile of the input, g: r × r taps, Y: m × m outputs, for two channels

This takes (m + r − 1)² products for m² outputs of r² taps, 36 instead of 144 for m = 4 and r = 3. Input channels are
summed before Aᵀ and A are applied, so each of the (m + r − 1)² points is a matrix product over all tiles:

    V[i, j, tile, c] = Bᵀ d B              one PrimFunc, in a space of its own (`spaces/cpu/tile_cases.py`)
    M[i, j, tile, k] = Σ_c V[i, j, tile, c] · U[i, j, c, k]      a contraction; U is computed when the model is imported
    Y[…, m·y + i, m·x + j, k] = Aᵀ M A     one PrimFunc, with the convolution's epilogue fused to it

All three are one PrimFunc (`spaces/cpu/transformed_tiles.py`) if each core has enough tiles, and its cache holds them.

The last two dimensions are transformed. A convolution in three sums over the taps of the first directly. Source: A.
Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks (2016), section 4.

The products are float32 where others are rounded to bfloat16, since Aᵀ and A would enlarge their errors: a chain of
three convolutions was off by 5.8 % of its largest output. They compete with the convolution in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike.frontend.constants import EXACT
from felixlike.frontend.rewrites.cook_toom import MOST, Matrix, fast_convolution
from felixlike.frontend.rewrites.half_values import has_half_factors, unrounded
from felixlike.frontend.rewrites.rewriting import (
    OPAQUE,
    OUT_FUSIBLE,
    Bindings,
    Rewriter,
    is_constant,
    operator,
    rewritten,
    shape,
)
from felixlike.hardware import FLOAT32, Device, Precision, estimate

LAYOUTS = {"nn.conv1d": ("NWC", "OIW"), "nn.conv2d": ("NHWC", "OIHW"), "nn.conv3d": ("NDHWC", "OIDHW")}
"""Layouts of data and weights of channels-last convolutions, by operator."""

_DTYPE = "float32"
"""Element type that is transformed. Differences within a tile would lose too much precision in shorter types."""

_ITEM_BITS = 32
"""Bits of its elements."""

_TAPS = range(3, 6)
"""Numbers of taps of a dimension that can be transformed."""

_OUTPUT = 0.5
"""Time to transform one element of a product, relative to one of the input, whose transformation is longer.

Chosen by hand.
"""

_LEAST_TILES = 8
"""Tiles of a core from which it computes all steps by itself. Each core then loads the transformed weights, which serve
all its tiles. Chosen by hand: no benchmark compares other values."""

_BUSY = 0.95
"""Part of the time for which rows of tiles must keep all cores busy then. The 7 rows of 28 × 28 places keep two cores
busy for seven eighths, and 128 channels take 1.11 times as long as in three kernels on two cores of Zen 4. No benchmark
repeats that."""

LEAST_SPEEDUP = 1.2
"""Minimum estimated speed-up.

Chosen by hand. `felixlike bench networks` and the row "conv2d 3×3" of `benchmarks.space` show the effect of the
rewrite.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """Describe a dimension whose taps are summed directly.

    Attributes:
        size: Extent of the input.
        output: Extent of the output.
        taps: Extent of the weights.
        stride: Stride of the convolution.
        dilation: Distance between taps, in elements.
        padding: Zeros before the first element.
    """

    size: int
    output: int
    taps: int
    stride: int
    dilation: int
    padding: int

    @property
    def padded(self) -> int:
        """Number of elements that windows reach."""
        return (self.output - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True, slots=True)
class Tiled:
    """Describe a dimension that is transformed in tiles.

    Attributes:
        size: Extent of the input.
        output: Extent of the output.
        taps: Extent of the weights, r.
        padding: Zeros before the first element.
        tile: Outputs of a tile, m.
    """

    size: int
    output: int
    taps: int
    padding: int
    tile: int

    @property
    def points(self) -> int:
        """Products of a tile, m + r − 1."""
        return self.tile + self.taps - 1

    @property
    def count(self) -> int:
        """Number of tiles. The last may reach beyond the output."""
        return -(-self.output // self.tile)

    @property
    def padded(self) -> int:
        """Number of elements that tiles reach."""
        return self.count * self.tile + self.taps - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Describe how a convolution is computed.

    Attributes:
        batch: Number of images.
        inputs: Input channels.
        outputs: Output channels.
        windows: Dimensions that are summed directly.
        tiled: Dimensions that are transformed.
    """

    batch: int
    inputs: int
    outputs: int
    windows: tuple[Window, ...]
    tiled: tuple[Tiled, ...]

    @property
    def points(self) -> int:
        """Products of a tile over all dimensions."""
        return prod(t.points for t in self.tiled)

    @property
    def tiles(self) -> int:
        """Number of tiles of an image, or of a slice of it."""
        return prod(t.count for t in self.tiled)

    def around(self, slices: Sequence[int]) -> list[int]:
        """Return the extents of the dimensions that enumerate tiles.  slices: elements of each window's dimension."""
        return [self.batch, *slices, *(t.count for t in self.tiled)]

    def rows(self, slices: Sequence[int]) -> list[int]:
        """Return the extents that enumerate tiles in the product.

        Tiles are one dimension. Without slices it includes the images.
        """
        return [self.batch, *slices, self.tiles] if slices else [self.batch * self.tiles]

    def stays_in_cache(self, device: Device | None) -> bool:
        """Return whether each core should compute all steps for rows of tiles, of which its cache holds enough."""
        if device is None or self.windows or len(self.tiled) < len(("rows", "columns")):
            return False
        if self.outputs % device.unit.lanes(_ITEM_BITS):
            return False
        rows, tiles = self.batch * self.tiled[0].count, self.batch * self.tiles
        tile = _ITEM_BITS // 8 * self.points * (self.inputs + self.outputs)
        cached = min(tiles // device.cores, device.tile_bytes // tile)
        return cached >= _LEAST_TILES and _BUSY * -(-rows // device.cores) * device.cores <= rows

    @property
    def cost(self) -> float:
        """Estimated cost in floating-point operations."""
        product, weights, transformations = self._costs()
        return product + weights + transformations

    @property
    def overlapped_cost(self) -> float:
        """Estimated cost in floating-point operations if weights are loaded while products are computed.

        It is closer to measured times. `cost` decides between float32 forms, which stay those of earlier versions.
        """
        product, weights, transformations = self._costs()
        return max(product, weights) + transformations

    def _costs(self) -> tuple[float, float, float]:
        """Return the estimated costs of the product, of loading its weights and of the transformations."""
        taps, slices = prod(w.taps for w in self.windows), prod(w.output for w in self.windows)
        places = self.points * self.batch * self.tiles
        product = 2.0 * places * slices * taps * self.inputs * self.outputs
        elements: float = places * prod(w.padded for w in self.windows) * self.inputs
        elements += _OUTPUT * places * slices * self.outputs
        weights = estimate.moved(4 * self.points * taps * self.inputs * self.outputs)
        return product, weights, estimate.moved(4 * elements)

    def direct_cost(self, times: int = 1) -> float:
        """Return the estimated cost of the original convolution in floating-point operations.

        times: Ratio of products per second to float32. Where it is not 1, input channels are even, and weights are
            loaded while products are computed.
        """
        dimensions: tuple[Window | Tiled, ...] = (*self.windows, *self.tiled)
        inputs = self.inputs + (self.inputs % 2 if times > 1 else 0)
        weights = prod(d.taps for d in dimensions) * inputs * self.outputs
        products = 2 * self.batch * prod(d.output for d in dimensions) * weights / times
        loaded = estimate.moved(4 / times * weights)
        return products + loaded if times == 1 else max(products, loaded)


def with_fast_convolutions(
    module: Any, precision: Precision = FLOAT32, halves: Precision = FLOAT32, device: Device | None = None
) -> Any:
    """Transform the float32 convolutions with constant weights that become faster.

    Args:
        module: Relax IRModule with operators.
        precision: Precision of products.
        halves: Precision in which products of bfloat16 tensors are computed, without rounding them.
        device: The device, for which all steps may be one function; None if they may not.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_transformed, precision=precision, halves=halves, device=device))


def _transformed(
    expression: Any,
    known: Bindings,
    rewriter: Rewriter,
    *,
    precision: Precision,
    halves: Precision,
    device: Device | None,
) -> Any:
    """Replace a convolution by transformations of input and output around a product."""
    exact = halves.is_reduced and operator(expression) in LAYOUTS and has_half_factors(expression, known)
    plan = plan_of(expression, halves.times if exact else precision.times)
    if plan is None:
        return None
    reshape, builder = _tvm.relax.op.reshape, rewriter.builder
    name = operator(expression).removeprefix("nn.") + "_fast"

    def computed(kind: str, pattern: int, make: Callable[..., Any], *arguments: Any) -> Any:
        attributes = {"op_pattern": pattern, **({EXACT: True} if precision.is_reduced else {})}
        call = partial(make, plan=plan)
        return builder.call_te(call, *arguments, primfunc_name_hint=f"{name}_{kind}", primfunc_attrs=attributes)

    data = unrounded(expression.args[0], known) if exact else expression.args[0]
    points = [t.points for t in plan.tiled]
    if plan.stays_in_cache(device):
        weights = transformed_weights(expression.args[1].value.numpy(), plan)
        constant = _tvm.relax.const(weights.reshape(*points, plan.inputs, plan.outputs))
        return computed("kernel", OUT_FUSIBLE, in_one_function, rewriter.new(data), constant)
    transformed = builder.emit(computed("input", OPAQUE, transformed_input, rewriter.new(data)))
    rows = plan.rows([w.padded for w in plan.windows])
    transformed = builder.emit(reshape(transformed, (plan.points, *rows, plan.inputs)))
    weights = _tvm.relax.const(transformed_weights(expression.args[1].value.numpy(), plan))
    product = builder.emit(computed("product", OPAQUE, products, transformed, weights))
    product = builder.emit(reshape(product, (*points, *plan.around([w.output for w in plan.windows]), plan.outputs)))
    return computed("output", OUT_FUSIBLE, transformed_output, product)


def is_channels_last(call: Any) -> bool:
    """Return whether an expression is a plain convolution whose input and output have channels last."""
    if operator(call) not in LAYOUTS:
        return False
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout)
    return layouts == LAYOUTS[operator(call)] and attrs.out_layout == attrs.data_layout


def plan_of(call: Any, times: int = 1) -> Plan | None:
    """Return the best plan for a call, or None if it is not a suitable convolution or no plan is faster.

    times: Ratio of products per second to float32 if the convolution may be rounded. Of two that take the same time,
        the plan is better, since its products are exact.
    """
    if not is_channels_last(call) or not is_constant(call.args[1]) or str(call.ty.dtype) != _DTYPE:
        return None
    attrs = call.attrs
    if int(attrs.groups) != 1:
        return None
    (batch, *sizes, inputs), (outputs, _, *taps), (_, *reached, _) = (
        shape(call.args[0]),
        shape(call.args[1]),
        shape(call),
    )
    strides, dilation = [int(s) for s in attrs.strides], [int(d) for d in attrs.dilation]
    padding = [int(p) for p in attrs.padding]
    rank = len(sizes)
    first = max(0, rank - 2)
    if any(strides[i] != 1 or dilation[i] != 1 or taps[i] not in _TAPS for i in range(first, rank)):
        return None
    windows = tuple(Window(sizes[i], reached[i], taps[i], strides[i], dilation[i], padding[i]) for i in range(first))
    tilings = [
        tuple(Tiled(sizes[i], reached[i], taps[i], padding[i], tile) for i in range(first, rank))
        for tile in range(2, MOST)
        if all(tile + taps[i] - 1 <= MOST for i in range(first, rank))
    ]
    plans = [Plan(batch, inputs, outputs, windows, tiled) for tiled in tilings]
    best = min(plans, key=lambda plan: plan.cost, default=None)
    if best is None or best.cost * LEAST_SPEEDUP > best.direct_cost():
        return None
    if times > 1 and best.overlapped_cost > best.direct_cost(times):
        return None
    return best


def transformed_weights(weights: Any, plan: Plan) -> Any:
    """Compute U[points, windows, input channel, output channel] of W[output channel, input channel, windows, taps]."""
    import numpy as np

    transformed = weights.astype("float64")
    for tiled in reversed(plan.tiled):
        # Moving the last axis to the front leaves the points in the order of the dimensions.
        matrix = np.array(fast_convolution(tiled.tile, tiled.taps).taps, "float64")
        transformed = np.moveaxis(transformed @ matrix.T, -1, 0)
    transformed = transformed.reshape(plan.points, *transformed.shape[len(plan.tiled) :])
    return np.ascontiguousarray(np.moveaxis(transformed, (1, 2), (-1, -2)).astype(weights.dtype))


def transformed_input(data: Any, plan: Plan) -> Any:
    """Compute V[points, batch, windows, tiles, channel] of X[batch, windows, places, channel]."""
    transformed = _padded(data, plan)
    for place in range(len(plan.tiled)):
        transformed = _input_along(place, transformed, plan)
    return transformed


def _input_along(place: int, read: Any, plan: Plan) -> Any:
    """Transform the input along one dimension. The last dimension's step moves the points to the front."""
    count, last = len(plan.tiled), place == len(plan.tiled) - 1
    rows = fast_convolution(plan.tiled[place].tile, plan.tiled[place].taps).inputs

    def value(*indices: Any) -> Any:
        *places, c = indices
        at, tile = (places[:count], places[count:]) if last else (places[-count:], places[:-count])

        def element(step: int) -> Any:
            inner = [*at[:place], step, *at[place + 1 :]]
            if place:
                return read(*tile, *inner, c)
            starts = [y * t.tile + i for y, t, i in zip(tile[-count:], plan.tiled, inner, strict=True)]
            return read(*tile[:-count], *starts, c)

        return _case(at[place], rows, element)

    outer = plan.around([w.padded for w in plan.windows])
    points = [t.points for t in plan.tiled]
    extents = [*points, *outer] if last else [*outer, *points]
    return _tvm.te.compute([*extents, plan.inputs], value, name="transformed" if last else f"along_{place}")


def products(taken: Any, weights: Any, plan: Plan) -> Any:
    """Compute M[points, tiles, output channel] = Σ V · U, of U[points, taps, input channel, output channel].

    Tiles are those of all images, or batch, windows and tiles. Points are one dimension, or one for each of a tile.
    """
    channel = _tvm.te.reduce_axis((0, plan.inputs), name="c")
    taps = [_tvm.te.reduce_axis((0, w.taps), name=f"r{i}") for i, w in enumerate(plan.windows)]
    count = len(weights.shape) - len((*taps, "inputs", "outputs"))

    def value(*indices: Any) -> Any:
        point, (*tiles, k) = indices[:count], indices[count:]
        if plan.windows:
            moved = zip(tiles[1:-1], plan.windows, taps, strict=True)
            tiles = [tiles[0], *(d * w.stride + r * w.dilation for d, w, r in moved), tiles[-1]]
        return _tvm.te.sum(taken(*point, *tiles, channel) * weights(*point, *taps, channel, k), axis=[channel, *taps])

    *extents, _ = (int(extent) for extent in taken.shape)
    rows = plan.rows([w.output for w in plan.windows]) if plan.windows else extents[count:]
    return _tvm.te.compute([*extents[:count], *rows, plan.outputs], value, name="product")


def in_one_function(data: Any, weights: Any, plan: Plan) -> Any:
    """Compute Y[batch, places, channel] of X[batch, places, channel] and U[points, input channel, output channel]."""
    return transformed_output(products(transformed_input(data, plan), weights, plan), plan)


def transformed_output(product: Any, plan: Plan) -> Any:
    """Compute Y[batch, windows, places, channel] of M[points, batch, windows, tiles, channel]."""
    transformed = product
    for place in range(len(plan.tiled)):
        transformed = _output_along(place, transformed, plan)

    def joined(n: Any, *indices: Any) -> Any:
        *places, k = indices
        slices, places = places[: len(plan.windows)], places[len(plan.windows) :]
        tiles = [y // t.tile for y, t in zip(places, plan.tiled, strict=True)]
        return transformed(n, *slices, *tiles, *(y % t.tile for y, t in zip(places, plan.tiled, strict=True)), k)

    whole = [plan.batch, *(w.output for w in plan.windows), *(t.output for t in plan.tiled), plan.outputs]
    return _tvm.te.compute(whole, joined, name="output")


def _output_along(place: int, read: Any, plan: Plan) -> Any:
    """Transform the output along one dimension. The first dimension's step moves the points behind the tiles."""
    count = len(plan.tiled)
    rows = fast_convolution(plan.tiled[place].tile, plan.tiled[place].taps).outputs

    def value(*indices: Any) -> Any:
        tile, at, k = indices[: -1 - count], indices[-1 - count : -1], indices[-1]

        def element(step: int) -> Any:
            inner = [*at[:place], step, *at[place + 1 :]]
            return read(*tile, *inner, k) if place else read(*inner, *tile, k)

        return _case(at[place], rows, element)

    outer = plan.around([w.output for w in plan.windows])
    inner = [t.tile if i <= place else t.points for i, t in enumerate(plan.tiled)]
    return _tvm.te.compute([*outer, *inner, plan.outputs], value, name=f"along_{place}")


def _padded(data: Any, plan: Plan) -> Any:
    """Pad X with the zeros that tiles and windows reach."""
    dimensions: tuple[Window | Tiled, ...] = (*plan.windows, *plan.tiled)
    if all(d.padding == 0 and d.padded <= d.size for d in dimensions):
        return data

    def value(n: Any, *indices: Any) -> Any:
        *places, c = indices
        at = [z - d.padding for d, z in zip(dimensions, places, strict=True)]
        inside = [i >= 0 for d, i in zip(dimensions, at, strict=True) if d.padding]
        inside += [i < d.size for d, i in zip(dimensions, at, strict=True) if d.padded - d.padding > d.size]
        return _tvm.te.if_then_else(_tvm.te.all(*inside), data(n, *at, c), _tvm.tirx.const(0, _DTYPE))

    return _tvm.te.compute([plan.batch, *(d.padded for d in dimensions), plan.inputs], value, name="padded")


def _case(index: Any, rows: Matrix, element: Callable[[int], Any]) -> Any:
    """Compute Σ_k rows[index][k] · element(k) for an unrolled index, with one case per value."""
    *first, result = (_sum(row, element) for row in rows)
    for number, value in reversed(list(enumerate(first))):
        result = _tvm.tirx.Select(index == number, value, result)
    return result


def _sum(row: Sequence[Fraction], element: Callable[[int], Any]) -> Any:
    """Compute Σ_k row[k] · element(k) without zero terms. Positive terms come first, so that no negation is needed."""
    total = None
    for step, factor in sorted(enumerate(row), key=lambda pair: pair[1] < 0):
        if factor:
            term = element(step)
            term = term if abs(factor) == 1 else _tvm.tirx.const(float(abs(factor)), _DTYPE) * term
            total = term if total is None else total + term if factor > 0 else total - term
    return total
