"""Padding of maxima that is below everything.

TVM pads what a maximum is taken of with the smallest finite number, which is larger than -inf: a window of -inf at an
edge would have it for its maximum.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.codegen.passes.propagate_nan import infinite, is_limit


def with_infinite_padding(module: Any) -> Any:
    """A module of PrimFuncs, none of them fused yet, whose maxima are padded with -inf."""
    return _tvm.map_functions(module, _padded)


def _padded(func: Any) -> Any:
    """Only where the function takes a maximum itself: a model may pad with finite numbers on purpose."""
    tirx = _tvm.tirx
    largest = any(isinstance(store.value, tirx.Max) for store in _tvm.found(func.body, tirx.BufferStore))
    if not largest:
        return func

    def pad(call: Any) -> Any:
        if str(getattr(call.op, "name", "")) != "prim.if_then_else" or not is_limit(call.args[2], "Max"):
            return call
        return tirx.if_then_else(call.args[0], call.args[1], infinite(call.args[2], "Max"))

    return _tvm.structural_map(func, (_tvm.ir.Call, pad))
