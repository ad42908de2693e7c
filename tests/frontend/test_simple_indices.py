"""Tests that index divisions without effect are removed from PrimFuncs, and that values are unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error

MODELS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "heads": (Apply(lambda x: x.view(1, 12, 4, 8).transpose(1, 2).exp()), (1, 12, 32), 0),
    "channel_shuffle": (nn.ChannelShuffle(4), (1, 12, 5, 7), 2),
    "pixel_shuffle": (nn.PixelShuffle(2), (1, 8, 5, 7), 4),
}
"""Model, shape of its input, and the remaining divisions: of channels by groups, or of positions by the upscaling."""


def _divisions(task: Any) -> int:
    body = task.module["main"].body
    blocks = [block for block in _tvm.found(body, _tvm.s_tir.SBlock) if block.iter_vars]
    return sum(len(_tvm.found(b.body, k)) for b in blocks for k in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod))


@pytest.mark.parametrize("name", MODELS)
def test_only_needed_divisions_remain(name: str) -> None:
    model, shape, remaining = MODELS[name]
    x = torch.randn(shape)
    imported = import_model(model, (x,))
    assert sum(map(_divisions, imported.tasks)) == remaining
    assert max_relative_error(compile_model(imported), model, (x,)).error < 1e-6
