"""Prepare a user's model for a comparison.

Input: anything that `felixlike.optimize` takes and PyTorch can run. Output: its name, and a function that creates a
module with flat inputs in any process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from felixlike._util.torch_compat import pytree
from felixlike.bench.networks import Model
from felixlike.errors import InvalidModel
from felixlike.frontend import import_model
from felixlike.frontend.signature.signature import Signature


def given(model: Any, shapes: Any = None) -> tuple[str, Callable[[], Model]]:
    """Return the name of a user's model, and a function that creates it with its inputs.

    Args:
        model: nn.Module, ExportedProgram or path of a .pt2 file. A module is put in eval mode.
        shapes: Example inputs or sizes, as for `felixlike.optimize`.

    Raises:
        InvalidModel: The model is not PyTorch's, changes its inputs or buffers, or cannot be read. Other errors of
            `felixlike.optimize` are raised as well.
    """
    imported = import_model(model, shapes)
    original = imported.original
    if isinstance(original, torch.export.ExportedProgram):
        original = original.module(check_guards=False)
    if not isinstance(original, nn.Module):
        raise InvalidModel(
            "only models of PyTorch can be compared",
            where=imported.name,
            remedy="name a function that returns an nn.Module, or a .pt2 file",
        )
    if imported.mutations:
        raise InvalidModel(
            "calls of the model change its inputs or buffers, so that its sides would not compute the same",
            where=imported.name,
            remedy="compare a model that only returns values",
        )
    if not isinstance(original, torch.fx.GraphModule):  # an exported program keeps its mode
        original.eval()
    args, kwargs = imported.signature.arguments(imported.examples)
    if kwargs or not all(isinstance(argument, Tensor) for argument in args):
        original = _Flat(original, imported.signature).train(original.training)
    return imported.name, partial(_with_inputs, original, imported.examples)


class _Flat(nn.Module):
    """A model that takes its tensors one by one and returns them so, as exporters expect."""

    def __init__(self, model: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self.signature = signature

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the model's outputs."""
        return tuple(pytree().tree_leaves(self.signature.call(self.model, tensors)))


def _with_inputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Model:
    """Return a model and its inputs. Another process receives copies of both."""
    return model, inputs
