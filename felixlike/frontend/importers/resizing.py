"""Convert PyTorch's bilinear interpolation into one kernel for each dimension.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

from collections.abc import Callable
from fractions import Fraction
from math import lcm
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import OPAQUE

_FLOAT_BYTES = 4
"""Bytes of a float32. Narrower types are rounded once, by TVM's kernel."""
_LARGEST_DENOMINATOR = 2**15
"""Upper limit on the denominator of a step. The nearest fraction is at most 2^-30 off; PyTorch rounds to 2^-24."""
_WHOLE = 1e-6
"""Difference up to which a size times a factor is the other size, of which PyTorch drops the fraction."""
_INT32 = 2**31


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
    if None in steps or not axes or node.meta["val"].dtype.itemsize < _FLOAT_BYTES:
        return importer._upsample_bilinear2d(node)
    data = importer.env[node.args[0]]
    for axis in axes:
        attributes = {"op_pattern": OPAQUE} if axis != axes[-1] else None
        data = importer.block_builder.emit_te(
            _interpolated,
            data,
            axis,
            int(after[axis]),
            steps[axis - 2],
            primfunc_name_hint="interpolate",
            primfunc_attrs=attributes,
        )
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


def _interpolated(data: Any, axis: int, size: int, step: tuple[int, int, int]) -> Any:
    """Interpolate linearly along a dimension. `step` is the result of `_step`."""
    tirx, (a, b, c), last, dtype = _tvm.tirx, step, int(data.shape[axis]) - 1, str(data.dtype)

    def element(*place: Any) -> Any:
        # int32: processors have vectors of its quotients.
        at = tirx.max(place[axis].astype("int32") * a + b, 0)
        low, rest = tirx.min(tirx.floordiv(at, c), last), tirx.floormod(at, c)
        weight = rest.astype(dtype) * tirx.const(1 / c, dtype)
        left, right = (
            data(*place[:axis], index.astype("int64"), *place[axis + 1 :]) for index in (low, tirx.min(low + 1, last))
        )
        return left * (tirx.const(1, dtype) - weight) + right * weight

    return _tvm.te.compute((*data.shape[:axis], size, *data.shape[axis + 1 :]), element, name="interpolate")


RESIZING: dict[str, Callable[[Any, Any], Any]] = {"upsample_bilinear2d.vec": _bilinear}
"""Converters by operator: (node, importer) → value."""
