"""Keep the operator that stacks many tensors in a kernel of its own.

    stack([h_1, …, h_15, sigmoid(g) · tanh(c)])      h_16 = sigmoid(g) · tanh(c), written once;
                                              →      stack([h_1, …, h_16]), a copy

TVM fuses the last step of a recurrent layer into the stack of all its steps, because nothing else reads it there. The
stack selects the source of an element by a chain of tests. Each is evaluated for every element, including what was
fused into it. For 16 steps of 8 × 512 numbers that took 180 µs, a third of the whole layer.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import INJECTIVE, OPAQUE, pattern_of

_MANY = 5
"""Minimum number of input tensors for which an operator without reductions is a stack.

No other TVM operator reads that many.
"""

_FEW = 2048
"""Number of output elements up to which another kernel would take longer. Chosen by hand."""


def with_stacks_apart(module: Any) -> Any:
    """Mark stacks as opaque, so that nothing is fused into them.

    Args:
        module: Relax IRModule of annotated PrimFuncs that are not fused yet.

    Returns:
        The rewritten module.
    """
    return _tvm.map_functions(module, lambda f: f.with_attr("op_pattern", OPAQUE) if _is_stack(f) else f)


def _is_stack(function: Any) -> bool:
    """Return whether a PrimFunc stacks at least `_MANY` tensors to more than `_FEW` elements."""
    if pattern_of(function) != INJECTIVE:
        return False
    shapes = [tuple(p.shape) for p in function.params if getattr(p, "shape", None) is not None]
    if len(shapes) <= _MANY:
        return False
    sizes = [int(size) if isinstance(size, _tvm.tirx.IntImm) else _FEW + 1 for size in shapes[-1]]
    return math.prod(sizes) > _FEW
