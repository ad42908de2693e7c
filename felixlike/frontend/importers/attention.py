"""Convert the PyTorch operators of attention to Relax.

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.fuse_attention import SAFE_SOFTMAX


def _safe_softmax(node: Any, importer: Any) -> Any:
    """Convert aten._safe_softmax, the softmax of attention, in which rows of only -inf give 0.

    It becomes one kernel. PyTorch's own decomposition reads all data a second time to find such rows.
    """
    relax, builder = _tvm.relax, importer.block_builder
    data = importer.env[node.args[0]]
    dtype = str(data.ty.dtype)
    wide = dtype if dtype in ("float32", "float64") else "float32"
    options = dict(zip(("dim", "dtype"), node.args[1:], strict=False)) | dict(node.kwargs)
    result = str(importer._convert_data_type(options["dtype"])) if options.get("dtype") is not None else dtype
    if wide != dtype:
        data = builder.emit(relax.op.astype(data, wide))
    axis = options["dim"] % len(importer.shape_of(data))
    along_last = {SAFE_SOFTMAX: True} if axis == len(importer.shape_of(data)) - 1 else {}
    softmax = builder.emit(
        builder.call_te(_rows_of_shares, data, axis, primfunc_name_hint="softmax", primfunc_attrs=along_last)
    )
    return softmax if wide == result else builder.emit(relax.op.astype(softmax, result))


def _rows_of_shares(x: Any, axis: int) -> Any:
    """Compute exp(x − m) / Σ exp(x − m) along an axis, with m the maximum, or 0 where that is -inf.

    The result is 0 where the sum is 0.
    """
    te, tirx = _tvm.te, _tvm.tirx
    outer = [extent for place, extent in enumerate(x.shape) if place != axis]
    none, one, lowest = (tirx.const(value, x.dtype) for value in (0.0, 1.0, -math.inf))

    def along(indices: Sequence[Any], step: Any) -> tuple[Any, ...]:
        return (*indices[:axis], step, *indices[axis:])

    def row(indices: Sequence[Any]) -> tuple[Any, ...]:
        return (*indices[:axis], *indices[axis + 1 :])

    def power(*i: Any) -> Any:
        m = largest[row(i)]
        return te.exp(x[i] - tirx.Select(m == lowest, none, m))

    def share(*i: Any) -> Any:
        s = total[row(i)]
        return powers[i] / tirx.Select(s == none, one, s)

    j, k = (te.reduce_axis((0, x.shape[axis]), name=name) for name in "jk")
    largest = te.compute(outer, lambda *i: te.max(x[along(i, k)], axis=k), name="largest")
    powers = te.compute(x.shape, power, name="powers")
    total = te.compute(outer, lambda *i: te.sum(powers[along(i, j)], axis=j), name="total")
    return te.compute(x.shape, share, name="share")


ATTENTION: dict[str, Callable[[Any, Any], Any]] = {"_safe_softmax.default": _safe_softmax}
"""Converters by operator: (node, importer) → value. PyTorch's decompositions must not remove these operators."""
