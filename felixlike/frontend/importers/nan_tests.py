"""Replace comparisons of a value with itself by tests for NaN.

Input: the graph of an ExportedProgram. Output: the same graph, with `isnan(y)` for `y != y`. Once `y` is inlined, TVM
takes both sides for equal and removes the comparison.
"""

from __future__ import annotations

from typing import Any

_UNEQUAL = "ne.Tensor"

_EQUAL = {"eq.Tensor", "ge.Tensor", "le.Tensor"}
"""Comparisons of a value with itself that are true unless it is NaN."""

_SAME = {"alias.default", "detach.default", "clone.default"}
"""Operators that return their operand's values."""


def replace_self_comparisons(program: Any) -> None:
    """Test for NaN where the graph compares a value with itself. Modifies the program's graph."""
    import torch

    aten: Any = torch.ops.aten
    graph = program.graph
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op != "call_function" or name not in {_UNEQUAL, *_EQUAL}:
            continue
        value, other = map(_origin, node.args)
        if value is not other or not value.meta["val"].is_floating_point():
            continue
        node.target, node.args = aten.isnan.default, (value,)
        if name in _EQUAL:
            with graph.inserting_after(node):
                negated = graph.call_function(aten.logical_not.default, (node,))
            negated.meta = dict(node.meta)
            node.replace_all_uses_with(negated, delete_user_cb=lambda user, negated=negated: user is not negated)


def _origin(node: Any) -> Any:
    """Return the node whose values a node returns unchanged."""
    while getattr(node.target, "__name__", "") in _SAME:
        node = node.args[0]
    return node
