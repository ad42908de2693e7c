"""What stacks many tensors is a kernel of its own.

    stack([h_1, …, h_15, sigmoid(g) · tanh(c)])      h_16 = sigmoid(g) · tanh(c), written once;
                                              →      stack([h_1, …, h_16]), a copy

TVM fuses the last step of a recurrent layer into the stack of all its steps, for nothing else reads it there. Which
tensor an element comes from is a chain of tests, each evaluated for every element, with all that was fused into it: of
16 steps of 8 × 512 numbers that took 180 µs, a third of the whole layer.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import INJECTIVE, OPAQUE, pattern_of

_MANY = 5
"""Tensors from which an operator without sums is a stack: nothing else that TVM has reads so many."""

_FEW = 2048
"""Elements up to which a kernel more would take longer.  Chosen by hand."""


def with_stacks_apart(module: Any) -> Any:
    """A module of annotated PrimFuncs, not yet fused; stacks are marked as what cannot be."""
    return _tvm.map_functions(module, lambda f: f.with_attr("op_pattern", OPAQUE) if _is_stack(f) else f)


def _is_stack(function: Any) -> bool:
    if pattern_of(function) != INJECTIVE:
        return False
    shapes = [tuple(p.shape) for p in function.params if getattr(p, "shape", None) is not None]
    if len(shapes) <= _MANY:
        return False
    sizes = [int(size) if isinstance(size, _tvm.tirx.IntImm) else _FEW + 1 for size in shapes[-1]]
    return math.prod(sizes) > _FEW
