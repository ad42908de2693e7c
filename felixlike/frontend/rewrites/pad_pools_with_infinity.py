"""Pad max pooling with -inf.

TVM pads with the smallest finite number, which is larger than -inf. A window of -inf at an edge would have it as its
maximum.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.codegen.passes.propagate_nan import infinite, is_limit


def with_infinite_padding(module: Any) -> Any:
    """Pad with -inf in the PrimFuncs that compute a maximum.

    Args:
        module: Relax IRModule of PrimFuncs that are not fused yet.

    Returns:
        The rewritten module.
    """
    return _tvm.map_functions(module, _padded)


def _padded(func: Any) -> Any:
    """Replace the padding in a function that computes a maximum.

    Other functions stay unchanged: a model may pad with finite numbers on purpose.
    """
    tirx = _tvm.tirx
    largest = any(isinstance(store.value, tirx.Max) for store in _tvm.found(func.body, tirx.BufferStore))
    if not largest:
        return func

    def pad(call: Any) -> Any:
        if str(getattr(call.op, "name", "")) != "prim.if_then_else" or not is_limit(call.args[2], "Max"):
            return call
        return tirx.if_then_else(call.args[0], call.args[1], infinite(call.args[2], "Max"))

    return _tvm.structural_map(func, (_tvm.ir.Call, pad))
