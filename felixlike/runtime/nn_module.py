"""Wrap a compiled model as a torch.nn.Module for use inside other modules.

Input: a callable on torch tensors. Output: a module without parameters or buffers, with one mode. Moving it, or a
module that contains it, raises an error if the compiled code would have to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from felixlike.errors import FixedModel
from felixlike.frontend import TensorSpec


class CompiledModule(torch.nn.Module):
    """A module whose forward calls a compiled model.

    Attributes:
        optimized: The callable.
    """

    def __init__(self, optimized: Any, *, name: str, tensors: Sequence[TensorSpec], device: torch.device) -> None:
        """Wrap a callable.

        Args:
            optimized: The callable.
            name: The model's name, for messages.
            tensors: Specifications of its inputs and outputs.
            device: The device of all of them.
        """
        super().__init__()
        self.optimized = optimized
        self._name, self._tensors, self._device = name, tuple(tensors), device

    def forward(self, *tensors: Any, **named: Any) -> Any:
        """Call the model."""
        return self.optimized(*tensors, **named)

    def extra_repr(self) -> str:
        """Return a description of the callable."""
        return repr(self.optimized)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Handle to(), cuda(), half() and the like, of this module or of one that contains it.

        Raises:
            FixedModel: The device or dtype of an input or output would change.
        """
        for spec in self._tensors:
            dtype = getattr(torch, spec.dtype)
            after = fn(torch.empty(0, dtype=dtype, device=self._device))
            if after.device != self._device or after.dtype is not dtype:
                raise FixedModel(
                    f"cannot change {spec.name} from {spec.dtype} on {self._device} to "
                    f"{str(after.dtype).removeprefix('torch.')} on {after.device}: compiled code is fixed",
                    where=self._name,
                    remedy="move the other modules separately, or optimize the model again for this dtype and device",
                )
        return self
