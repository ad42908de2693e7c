"""Convert PyTorch's grid_sample into places and weights, and sums of the elements at these places.

    place[k, p], weight[k, p] = those of corner k of point p       k of 4 (bilinear) or 1 (nearest)
    Y[p, c] = Σ_k weight[k, p] · X[place[k, p], c]

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value. TVM's kernel computes places
and weights again for each channel, and reads single elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import OPAQUE
from felixlike.hardware.vectors import SHORTEST

_BILINEAR, _NEAREST = 0, 1
"""PyTorch's numbers of methods."""
_BORDER, _REFLECTION = 1, 2
"""PyTorch's numbers of paddings."""
_LARGEST_SIDE = 2**15
"""Limit on the sides of images and grids, so that places are int32."""
_LEAST_CHANNELS = SHORTEST - 1
"""Channels from which vectors of them are read. Three, padded to four, take 0.87 of the time of single elements."""


def grid_sample(node: Any, importer: Any) -> Any:
    """Convert aten.grid_sampler_2d.

    With enough channels, the image is turned to channels last, and vectors of channels are read. Three are padded to
    four. Dtypes other than float32, cubic samples, padding by reflection and dynamic sizes are left to TVM's operator.
    """
    data, grid, method, padding, aligned = node.args
    shapes = [tensor.meta["val"].shape for tensor in (data, grid)]
    fixed = all(isinstance(size, int) and 0 < size < _LARGEST_SIDE for shape in shapes for size in shape)
    simple = method in (_BILINEAR, _NEAREST) and padding != _REFLECTION
    if not (fixed and simple) or str(importer.env[data].ty.dtype) != "float32":
        return _by_tvm(node, importer)
    batch, channels, height, width = map(int, shapes[0])
    op, builder, opaque = _tvm.relax.op, importer.block_builder, {"op_pattern": OPAQUE}
    emit = builder.emit
    corners = _Corners((height, width), nearest=method == _NEAREST, clipped=padding == _BORDER, aligned=bool(aligned))
    # No kernel is computed again for each reader, and transposes are not joined with reshapes.
    kernel = partial(builder.emit_te, primfunc_attrs=opaque)
    coordinates = kernel(corners.coordinates, importer.env[grid], primfunc_name_hint="coordinates")
    read = kernel(corners.tensors, coordinates, primfunc_name_hint="places")
    places, weights = (emit(_tvm.relax.TupleGetItem(read, number)) for number in range(2))
    last, vector = channels >= _LEAST_CHANNELS, max(channels, SHORTEST)
    image = importer.env[data]
    if last:
        image = kernel(partial(_channels_last, channels=vector), image, primfunc_name_hint="transpose")
    shape = (batch, height * width, vector) if last else (batch, channels, height * width)
    tensors = emit(op.reshape(image, shape)), places, weights
    result = kernel(partial(_samples, last=last), *tensors, primfunc_name_hint="grid_sample")
    if not last:
        return result
    if vector > channels:
        result = emit(op.strided_slice(result, [3], [0], [channels]))
    return emit(op.permute_dims(result, (0, 3, 1, 2)))


@dataclass(frozen=True, slots=True)
class _Corners:
    """Places and weights of the elements around points.

    Attributes:
        sizes: Rows and columns of the image.
        nearest: Whether the nearest element is read, instead of four.
        clipped: Whether points outside of the image are moved to its border.
        aligned: Whether -1 and 1 are the centers of the first and the last element, instead of their outer edges.
    """

    sizes: tuple[int, int]
    nearest: bool
    clipped: bool
    aligned: bool

    def coordinates(self, points: Any) -> Any:
        """Return the TE tensor of coordinates in elements of the image: (y and x, image, row, column).

        They are computed as PyTorch's kernel does. Borders turn NaN into 0. points: coordinates (image, row, column,
        x and y) from -1 to 1.
        """
        select = _tvm.tirx.Select

        def coordinate(axis: Any, *point: Any) -> Any:
            height, width = map(_f, self.sizes)
            size = select(axis > 0, width, height)
            scale = size * _f(0.5) - (_f(0.5) if self.aligned else _f(0))
            place = (points(*point, 1 - axis) + _f(1)) * scale
            place = place if self.aligned else place - _f(0.5)
            if not self.clipped:
                return place
            place = select(place > _f(0), place, _f(0))
            return select(place < size - _f(1), place, size - _f(1))

        return _tvm.te.compute((2, *points.shape[:3]), coordinate, name="coordinate")

    def tensors(self, coordinates: Any) -> tuple[Any, Any]:
        """Return the TE tensors of places in the flat image, -1 outside of it, and of weights.

        Both are (corner, image, row, column).
        """
        tirx, (_, width) = _tvm.tirx, self.sizes
        shape = (1 if self.nearest else 4, *coordinates.shape[1:])

        def place(corner: Any, *point: Any) -> Any:
            steps = enumerate(_steps(corner))
            y, x = (self._element(coordinates(axis, *point), axis) + step for axis, step in steps)
            inside = tirx.all(y >= 0, y < self.sizes[0], x >= 0, x < width)
            return tirx.Select(inside, y * width + x, tirx.const(-1, "int32"))

        def weight(corner: Any, *point: Any) -> Any:
            factors = []
            for axis, step in enumerate(_steps(corner)):
                coordinate = coordinates(axis, *point)
                rest = coordinate - tirx.floor(coordinate)
                factors.append(tirx.Select(step > 0, rest, _f(1) - rest))
            return _f(1) if self.nearest else factors[0] * factors[1]

        return _tvm.te.compute(shape, place, name="place"), _tvm.te.compute(shape, weight, name="weight")

    def _element(self, coordinate: Any, axis: int) -> Any:
        """Return the first element of a coordinate as an integer. It is outside for NaN and distant coordinates."""
        tirx, size = _tvm.tirx, self.sizes[axis]
        first = tirx.nearbyint(coordinate) if self.nearest else tirx.floor(coordinate)
        first = tirx.Select(first > _f(-2), first, _f(-2))
        return tirx.Select(first < _f(size), first, _f(size)).astype("int32")


def _steps(corner: Any) -> tuple[Any, Any]:
    """Return the steps of a corner from the first element, along rows and columns."""
    number = corner.astype("int32")
    return _tvm.tirx.floordiv(number, 2), _tvm.tirx.floormod(number, 2)


def _f(value: float) -> Any:
    """Return a float32 constant."""
    return _tvm.tirx.const(value, "float32")


def _channels_last(image: Any, *, channels: int) -> Any:
    """Return the TE tensor of an image with channels last, padded with zeros to a number of channels."""
    batch, given, *sizes = image.shape

    def element(n: Any, h: Any, w: Any, c: Any) -> Any:
        value = image(n, c, h, w)
        return value if int(given) == channels else _tvm.tirx.if_then_else(c < given, value, _f(0))

    return _tvm.te.compute((batch, *sizes, channels), element, name="transpose")


def _samples(image: Any, places: Any, weights: Any, *, last: bool) -> Any:
    """Return the TE tensor of weighted sums of elements. Those outside of the image are 0.

    image: (image, place, channel) if `last`, else (image, channel, place). The result has the channels at the same end.
    """
    tirx, (corners, count, down, across) = _tvm.tirx, places.shape

    def element(number: Any, *rest: Any) -> Any:
        (*point, channel) = rest if last else (*rest[1:], rest[0])
        products = []
        for corner in range(int(corners)):
            place = places(corner, number, *point)
            inner = tirx.max(place, 0).astype("int64")
            value = image(number, inner, channel) if last else image(number, channel, inner)
            products.append(tirx.Select(place >= 0, value, _f(0)) * weights(corner, number, *point))
        return sum(products[1:], products[0])

    shape = (count, down, across, image.shape[2]) if last else (count, image.shape[1], down, across)
    return _tvm.te.compute(shape, element, name="samples")


def _by_tvm(node: Any, importer: Any) -> Any:
    """Convert aten.grid_sampler_2d to TVM's operator, which expects the two coordinates in front."""
    data, grid, method, padding, aligned = node.args
    emit = importer.block_builder.emit
    turned = emit(_tvm.relax.op.permute_dims(importer.env[grid], (0, 3, 1, 2)))
    sampled = _tvm.relax.op.image.grid_sample(
        importer.env[data],
        turned,
        method=("bilinear", "nearest", "bicubic")[method],
        layout="NCHW",
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=aligned,
    )
    return emit(sampled)
