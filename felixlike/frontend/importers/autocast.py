"""Capture what a module computes under the autocast of the caller, as `torch.compile` does.

Input: an nn.Module. Output: a module of the same class and with the same tensors, whose `forward` runs under autocast.
Exports and evaluations of it then have autocast's casts, wherever they run.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

from felixlike.errors import InvalidModel


def under_autocast(model: Any, dtype: Any) -> Any:
    """Return a shallow copy of a module that runs under autocast for the CPU.

    Args:
        model: The nn.Module, which is left unchanged.
        dtype: Autocast's dtype.

    Raises:
        InvalidModel: The module has a `forward` of its own instead of its class's.
    """
    if "forward" in vars(model):
        raise InvalidModel(
            "its forward was replaced, so it cannot be captured under autocast",
            where=type(model).__name__,
            remedy="enable autocast in the model's forward instead of around this call",
        )
    cast = copy.copy(model)
    forward: Any = functools.partial(_cast_forward, cast, dtype)  # deep copies of the module run with their own tensors
    forward.__signature__ = inspect.signature(model.forward)
    cast.forward = forward
    return cast


def _cast_forward(module: Any, dtype: Any, *arguments: Any, **named: Any) -> Any:
    """Call a module's forward under autocast."""
    import torch

    with torch.autocast("cpu", dtype):
        return type(module).forward(module, *arguments, **named)
