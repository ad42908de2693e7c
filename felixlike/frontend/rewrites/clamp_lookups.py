"""Keep table lookups in bounds.

relax.take's "fast" mode reads out of bounds for a bad index (TVM warns of segmentation faults on stderr). It also
misreads negative indices, which PyTorch and ONNX count from the end. Mode "wrap" is right for those.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten


def with_safe_indices(module: Any) -> Any:
    """Make lookups wrap around for indices out of range.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _wrapped)


def _wrapped(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace a take of mode "fast" by one of mode "wrap"."""
    if operator(expression) != "take" or expression.attrs.mode != "fast":
        return None
    arguments = [rewriter.new(argument) for argument in expression.args]
    return _tvm.relax.op.take(*arguments, axis=expression.attrs.axis, mode="wrap")
