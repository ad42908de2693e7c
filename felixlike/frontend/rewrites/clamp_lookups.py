"""Lookups that stay inside their tables.

relax.take's "fast" mode reads whatever lies at a bad index (TVM warns of segmentation faults on stderr), and misreads
negative indices, which PyTorch and ONNX count from the end; "wrap" is right for those.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten


def with_safe_indices(module: Any) -> Any:
    """A Relax module whose lookups wrap around where an index is bad."""
    return rewritten(module, _wrapped)


def _wrapped(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    if operator(expression) != "take" or expression.attrs.mode != "fast":
        return None
    arguments = [rewriter.new(argument) for argument in expression.args]
    return _tvm.relax.op.take(*arguments, axis=expression.attrs.axis, mode="wrap")
