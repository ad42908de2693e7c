"""A compiled model as a torch.nn.Module, to be part of others.

In: a callable on torch tensors. Out: a module without parameters or buffers. There is nothing in it to train and one
mode only; moving it, or a module around it, is refused where the compiled code cannot follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from felixlike.errors import FixedModel
from felixlike.frontend import TensorSpec


class CompiledModule(torch.nn.Module):
    """optimized: the callable.  forward takes and gives what it does."""

    def __init__(self, optimized: Any, *, name: str, tensors: Sequence[TensorSpec], device: torch.device) -> None:
        """tensors: its inputs and outputs, all on the device."""
        super().__init__()
        self.optimized = optimized
        self._name, self._tensors, self._device = name, tuple(tensors), device

    def forward(self, *tensors: Any, **named: Any) -> Any:
        """See the callable's own call."""
        return self.optimized(*tensors, **named)

    def extra_repr(self) -> str:
        """The callable, in words."""
        return repr(self.optimized)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """What to(), cuda(), half() and the like, of this module or of one around it, come to.

        Raises FixedModel if they would change the device or type of an input or output."""
        for spec in self._tensors:
            dtype = getattr(torch, spec.dtype)
            after = fn(torch.empty(0, dtype=dtype, device=self._device))
            if after.device != self._device or after.dtype is not dtype:
                raise FixedModel(
                    f"{spec.name} is {spec.dtype} on {self._device} for good, and cannot become "
                    f"{str(after.dtype).removeprefix('torch.')} on {after.device}",
                    where=self._name,
                    remedy="move the parts around it one by one, or optimize the model anew as it is to be",
                )
        return self
