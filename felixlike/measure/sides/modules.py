"""Send PyTorch models to other processes: exported programs too, whose modules cannot be pickled."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def sendable(model: Any) -> Callable[[], nn.Module]:
    """Return a picklable function that returns the module.

    Args:
        model: nn.Module or ExportedProgram.
    """
    import torch

    if not isinstance(model, torch.export.ExportedProgram):
        return partial(_itself, model)
    file = io.BytesIO()
    torch.export.save(model, file)
    return partial(_of_program, file.getvalue())


def _itself(model: nn.Module) -> nn.Module:
    """Return a module, which was copied on its way to another process."""
    return model


def _of_program(content: bytes) -> nn.Module:
    """Return the module of an exported program from the content of its file."""
    import torch

    module: nn.Module = torch.export.load(io.BytesIO(content)).module(check_guards=False)
    return module
