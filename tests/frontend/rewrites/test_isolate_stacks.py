"""Large transposed tensors are written before they are joined to others."""

from __future__ import annotations

import pytest
import torch
from support.models import Apply
from torch import Tensor

from felixlike.frontend import import_model
from felixlike.runtime import compile_model


def _joined(tokens: Tensor, image: Tensor) -> Tensor:
    """Join the channels of tokens, moved first and activated, to those of an image."""
    return torch.cat([tokens.transpose(1, 2).reshape(1, -1, *image.shape[2:]).relu(), image * 2], 1)


@pytest.mark.parametrize(("channels", "apart"), [(33, True), (31, False)])
def test_large_transposed_parts_are_kernels_of_their_own(channels: int, apart: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1, 1024, channels), torch.randn(1, 40, 32, 32)
    imported = import_model(Apply(_joined), inputs)
    names = [task.name for task in imported.tasks]
    assert any("transpose" in name and "concatenate" not in name for name in names) is apart, names
    assert not any("gate" in name for name in names)
    torch.testing.assert_close(compile_model(imported)(*inputs), _joined(*inputs))


def test_parts_whose_rows_stay_rows_are_joined_where_they_are_read() -> None:
    inputs = torch.randn(1, 64, 33, 32), torch.randn(1, 33, 64, 32)
    imported = import_model(Apply(lambda x, y: torch.cat([x.transpose(1, 2), y * 2], 1)), inputs)
    assert len(imported.tasks) == 1
    expected = torch.cat([inputs[0].transpose(1, 2), inputs[1] * 2], 1)
    torch.testing.assert_close(compile_model(imported)(*inputs), expected)
