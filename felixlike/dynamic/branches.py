"""Tell whether a module takes another branch at some sizes than the one that was compiled.

Input: a `Source` and inputs of other sizes. Output: yes or no. torch.export captures what a module computes for its
examples. A branch on sizes, or a squeeze of a size of 1, computes something else at other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike.frontend.imported import Source
from felixlike.frontend.importers.torch import export_module

OTHER_OPERATORS = "there, the model computes with other operators than at the sizes of its examples, as after a branch"
"""Description of the sizes for which `takes_another_branch` is true."""

REMEDY = "leave such sizes out of the ranges of the `Dim`s, replace the branch with torch.where, or fix the sizes"
"""Remedy for such sizes."""


def takes_another_branch(source: Source, inputs: Sequence[Any]) -> bool:
    """Return whether a module calls other operators for inputs than for its examples, or results have another rank.

    Args:
        source: The model.
        inputs: Flat tensors.

    Returns:
        Whether that is known: False for models that cannot be exported at these sizes, or are no modules.
    """
    import torch

    if not isinstance(source.original, torch.nn.Module):
        return False
    try:
        here, there = (_operators(source, tensors) for tensors in (source.examples, inputs))
    except Exception:  # the user's model may raise anything at these sizes
        return False
    return here != there


def _operators(source: Source, tensors: Sequence[Any]) -> list[tuple[str, int]]:
    """Return the operators that a module calls for inputs, with the numbers of dimensions of their results."""
    args, kwargs = source.signature.arguments(tensors)
    program = export_module(source.original, kwargs or args, random=True).program
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [(str(node.target), len(getattr(node.meta.get("val"), "shape", ()))) for node in calls]
