"""Test the proof that a model computes each sample of its batch alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from felixlike.frontend import import_model
from felixlike.frontend.independent_samples import has_independent_samples
from felixlike.hardware import described_target

_BATCH = 6


class _Apply(nn.Module):
    """A model that applies a function, and has weights."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.convolution, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4)
        self.dense, self.recurrent = nn.Linear(4, 5), nn.GRU(4, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.table = nn.Parameter(torch.randn(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


_ALONE: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "convolution": (lambda m, x: m.norm(m.convolution(x)).relu().mean((2, 3)), (_BATCH, 4, 9, 9)),
    "depthwise": (lambda m, x: m.depthwise(x) + m.depthwise(x).flip(2), (_BATCH, 4, 8, 8)),
    "pools": (lambda m, x: functional.max_pool2d(x, 3, 2, 1), (_BATCH, 4, 9, 9)),
    "rows of all samples": (lambda m, x: m.dense(x.reshape(-1, 4)).reshape(_BATCH, 3, 5).softmax(1), (_BATCH, 3, 4)),
    "attention": (lambda m, x: functional.scaled_dot_product_attention(x, x + 1, x * 2), (_BATCH, 5, 4)),
    "rolled within samples": (lambda m, x: torch.cat([x.roll(1, 1), x.flip(1)], 1), (_BATCH, 5)),
    "products of samples": (lambda m, x: x @ x.mT, (_BATCH, 3, 4)),
    "looked up": (lambda m, x: m.table[x.abs().long().clamp(0, 6)], (_BATCH, 5)),
}
_TOGETHER: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "mean": (lambda m, x: x - x.mean(0), (_BATCH, 5)),
    "one mean": (lambda m, x: x - x.mean(), (_BATCH, 5)),
    "softmax": (lambda m, x: x.softmax(0), (_BATCH, 5)),
    "cumulative sum": (lambda m, x: x.cumsum(0), (_BATCH, 5)),
    "reversed": (lambda m, x: x.flip(0) * 2, (_BATCH, 5)),
    "rolled": (lambda m, x: x.roll(1, 0) + x, (_BATCH, 5)),
    "the first sample": (lambda m, x: x * x[0], (_BATCH, 5)),
    "products between samples": (lambda m, x: x @ x.T, (_BATCH, 5)),
    "batch in the middle": (lambda m, x: m.attention(x, x, x)[0].transpose(0, 1), (4, _BATCH, 4)),
    "attention between samples": (lambda m, x: m.attention(x, x, x)[0], (_BATCH, 4)),
    "recurrent along the batch": (lambda m, x: m.recurrent(x)[0], (_BATCH, 4)),
    "no batch in the output": (lambda m, x: m.dense(x).sum(0), (_BATCH, 4)),
    "another order": (lambda m, x: x.reshape(4, _BATCH).T * 2, (_BATCH, 4)),
    "sorted": (lambda m, x: x.sort(0).values, (_BATCH, 5)),
}


def _is_proved(function: Callable[..., Tensor], shape: tuple[int, ...]) -> bool:
    torch.manual_seed(0)
    imported = import_model(_Apply(function).eval(), torch.randn(shape), described_target("zen5"))
    return has_independent_samples(imported.module, _BATCH)


@pytest.mark.parametrize("name", _ALONE)
def test_samples_that_are_computed_alone_are_proved_to_be_independent(name: str) -> None:
    assert _is_proved(*_ALONE[name])


@pytest.mark.parametrize("name", _TOGETHER)
def test_samples_that_depend_on_others_are_not(name: str) -> None:
    assert not _is_proved(*_TOGETHER[name])
