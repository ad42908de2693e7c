"""Convert PyTorch's linear and cubic interpolations into one kernel for each dimension.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import lcm
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.errors import UnsupportedOperator
from felixlike.frontend.interpolation import Interpolation, interpolated
from felixlike.frontend.rewrites.rewriting import OPAQUE

_FLOAT_BYTES = 4
"""Bytes of a float32. Narrower types are rounded once, by TVM's kernel."""
_LARGEST_DENOMINATOR = 2**15
"""Upper limit on the denominator of a step. The nearest fraction is at most 2^-30 off; PyTorch rounds to 2^-24."""
_WHOLE = 1e-6
"""Difference up to which a size times a factor is the other size, of which PyTorch drops the fraction."""
_INT32 = 2**31
_CUBIC, _SMOOTHING_CUBIC = -0.75, -0.5
"""PyTorch's parameters of cubic interpolation, without and with "antialias"."""


def _bilinear(node: Any, importer: Any) -> Any:
    """Convert aten.upsample_bilinear2d: along one dimension after the other.

    TVM's kernel reads four elements at computed places for each result. Here columns are interpolated first, unless
    there are fewer rows afterwards: only they are read at computed places. The first kernel is not fused with the
    second, which would compute its results again for each row.
    """
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    aligned, factors = node.args[2], (node.args[3] if len(node.args) > 3 else None) or (None, None)
    steps = [_step(before[axis], after[axis], factors[axis - 2], aligned=aligned) for axis in (2, 3)]
    axes = [axis for axis in ((3, 2) if before[2] <= after[2] else (2, 3)) if steps[axis - 2] != (1, 0, 1)]
    if not axes and before[2:] == after[2:]:
        return importer.env[node.args[0]]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps) or not axes or node.meta["val"].dtype.itemsize < _FLOAT_BYTES:
        return importer._upsample_bilinear2d(node)
    data = importer.env[node.args[0]]
    for axis in axes:
        how = Interpolation(axis, int(after[axis]), known[axis - 2], OPAQUE if axis != axes[-1] else None)
        data = interpolated(importer.block_builder, data, how)
    return data


def _step(before: Any, after: Any, factor: float | None, *, aligned: bool) -> tuple[int, int, int] | None:
    """Return integers a, b and c such that result i is at place max(a i + b, 0) / c of a dimension.

    Returns None for dynamic sizes and for integers beyond int32.
    """
    if not (isinstance(before, int) and isinstance(after, int)):
        return None
    if aligned:
        step, first = Fraction(before - 1, after - 1) if after > 1 else Fraction(0), Fraction(0)
    else:
        step = Fraction(before, after)
        if factor is not None and abs(before * factor - after) >= _WHOLE:
            step = (1 / Fraction(factor)).limit_denominator(_LARGEST_DENOMINATOR)
        first = (step - 1) / 2
    common = lcm(step.denominator, first.denominator)
    a, b = int(step * common), int(first * common)
    return (a, b, common) if a * after + abs(b) + common < _INT32 else None


def _by_taps(node: Any, importer: Any, *, cubic: bool = False, smoothed: bool = False) -> Any:
    """Convert an interpolation by constant tables of places and weights, along one dimension after the other.

    The dimensions that shrink most come first, among equal ones the last. Narrow types are computed in float32 and
    rounded once, as in PyTorch.
    """
    before, after = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]
    aligned, *factors = node.args[2:]
    if not factors or factors[0] is None or isinstance(factors[0], list | tuple):  # all in one list
        factors = list(factors[0] if factors and factors[0] else [None] * len(after))
    if not is_resized_here(node.args[0].meta["val"], after):
        raise UnsupportedOperator(
            f"{node.target} is not supported for dynamic sizes or integers", remedy="use fixed sizes and floats"
        )
    builder, dtype = importer.block_builder, str(node.meta["val"].dtype).removeprefix("torch.")
    data = importer.env[node.args[0]]
    wide = node.meta["val"].dtype.itemsize >= _FLOAT_BYTES
    data = data if wide else builder.emit(_tvm.relax.op.astype(data, "float32"))
    steps = [
        _ratio(*sizes, factor, aligned=aligned)
        for sizes, factor in zip(zip(before, after, strict=True), factors, strict=True)
    ]
    axes = [axis for axis in range(len(after)) if (steps[axis], before[axis]) != (1, after[axis])]
    for axis in sorted(axes, key=lambda axis: (after[axis] / before[axis], -axis)):
        if smoothed:
            taps = _smoothing_taps(before[axis], after[axis], steps[axis], cubic=cubic)
        else:
            taps = _taps(before[axis], after[axis], steps[axis], aligned=aligned, cubic=cubic)
        places, weights = taps
        data = builder.emit_te(
            _summed,
            data,
            _tvm.relax.const(places.astype("int32")),
            _tvm.relax.const(weights.astype(dtype if wide else "float32")),
            axis + 2,
            smoothed,
            primfunc_name_hint="interpolate",
            primfunc_attrs={"op_pattern": OPAQUE},
        )
    return data if wide else builder.emit(_tvm.relax.op.astype(data, dtype))


def is_resized_here(x: Any, after: Sequence[Any]) -> bool:
    """Return whether a tensor's interpolation to some sizes is converted: it has floats, and all sizes are fixed."""
    return x.is_floating_point() and all(isinstance(size, int) for size in (*x.shape, *after))


def _ratio(before: int, after: int, factor: float | None, *, aligned: bool) -> float:
    """Return the distance of neighbouring results of a dimension, in elements of the input."""
    if aligned:
        return (before - 1) / (after - 1) if after > 1 else 0.0
    return 1 / factor if factor else before / after


def _taps(before: int, after: int, step: float, *, aligned: bool, cubic: bool) -> tuple[Any, Any]:
    """Return the places of the elements that each result is summed up from, and their weights (tap, result)."""
    result = np.arange(after)
    at = result * step if aligned else (result + 0.5) * step - 0.5
    at = at if cubic else np.maximum(at, 0)
    low = np.floor(at)
    offsets = np.arange(-1, 3) if cubic else np.arange(2)
    distances = np.abs(at - low - offsets[:, None])
    weights = _cubic(distances, _CUBIC) if cubic else 1 - distances
    return np.clip(low + offsets[:, None], 0, before - 1), weights


def _smoothing_taps(before: int, after: int, step: float, *, cubic: bool) -> tuple[Any, Any]:
    """Return the same as `_taps` for a filter that becomes wider where a dimension shrinks ("antialias").

    Taps outside of the window have weight 0 and the place of the window's last element.
    """
    wider, center = max(step, 1.0), (np.arange(after) + 0.5) * step
    reach = (2 if cubic else 1) * wider
    first = np.maximum(np.trunc(center - reach + 0.5), 0)
    end = np.minimum(np.trunc(center + reach + 0.5), before)
    places = first + np.arange(int((end - first).max()))[:, None]
    distances = np.abs(places - center + 0.5) / wider
    weights = _cubic(distances, _SMOOTHING_CUBIC) if cubic else np.maximum(1 - distances, 0)
    weights = np.where(places < end, weights, 0)
    return np.minimum(places, end - 1), weights / weights.sum(0)


def _cubic(distances: Any, a: float) -> Any:
    """Return the weights of the cubic convolution (R. G. Keys, 1981) with the parameter a, by distance."""
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = ((distances - 5) * distances + 8) * a * distances - 4 * a
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0))


def _summed(data: Any, places: Any, weights: Any, axis: int, smoothed: bool) -> Any:
    """Sum up the taps of each result along a dimension. Smoothing filters skip repeated taps."""
    taps, zero = range(int(places.shape[0])), _tvm.tirx.const(0, str(data.dtype))

    def element(*place: Any) -> Any:
        total = zero
        for tap in taps:
            i = place[axis]
            product = weights(tap, i) * data(*place[:axis], places(tap, i), *place[axis + 1 :])
            if smoothed and tap:  # infinities outside of the window count as nothing
                outside = places(tap, i) == places(tap - 1, i)
                product = _tvm.tirx.Select(outside, zero, product)
            total = product + total if tap else product
        return total

    sizes = (*data.shape[:axis], places.shape[1], *data.shape[axis + 1 :])
    return _tvm.te.compute(sizes, element, name="interpolate")


RESIZING: dict[str, Callable[[Any, Any], Any]] = {
    "upsample_bilinear2d.vec": _bilinear,
    "upsample_linear1d.vec": _by_taps,
    "upsample_trilinear3d.vec": _by_taps,
    "upsample_bicubic2d.vec": partial(_by_taps, cubic=True),
    "_upsample_bilinear2d_aa.default": partial(_by_taps, smoothed=True),
    "_upsample_bicubic2d_aa.default": partial(_by_taps, smoothed=True, cubic=True),
}
"""Converters by operator: (node, importer) → value."""

BY_TAPS = ("upsample_linear1d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Operators whose decomposition by PyTorch reads all taps of all dimensions for each result."""
