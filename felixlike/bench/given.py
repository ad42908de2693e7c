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
from felixlike.measure.sides.modules import sendable


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
    if not isinstance(original, nn.Module | torch.export.ExportedProgram):
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
    args, kwargs = imported.signature.arguments(imported.examples)
    is_nested = bool(kwargs) or not all(isinstance(argument, Tensor) for argument in args)
    signature = imported.signature if is_nested else None
    return imported.name, partial(_created, sendable(original), signature, imported.examples)


def _created(make: Callable[[], nn.Module], signature: Signature | None, inputs: tuple[Tensor, ...]) -> Model:
    """Return the module in eval mode, and its inputs. Its arguments are flat if it has a signature for them."""
    module = make()
    if not isinstance(module, torch.fx.GraphModule):  # an exported program keeps its mode
        module.eval()
    return module if signature is None else _Flat(module, signature).train(module.training), inputs


class _Flat(nn.Module):
    """A model that takes its tensors one by one and returns them so, as exporters expect."""

    def __init__(self, model: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self.signature = signature

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the model's outputs."""
        return tuple(pytree().tree_leaves(self.signature.call(self.model, tensors)))
