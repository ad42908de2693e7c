"""Tests for models in training mode and models that change their inputs, which are optimized with a warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike.errors import FelixlikeWarning, TrainingModeWarning
from felixlike.frontend.importers.training_mode import differing_parts


class Switching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.training else x * 2


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize(
    ("part", "differs"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout2d(0.1), True),
        (nn.BatchNorm1d(4), True),
        (nn.BatchNorm1d(4, track_running_stats=False), False),
        (nn.InstanceNorm1d(4), False),
        (nn.LayerNorm(4), False),
        (nn.RReLU(), True),
        (nn.LSTM(4, 4, 2, dropout=0.5), True),
        (nn.LSTM(4, 4, 1), False),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (nn.MultiheadAttention(4, 2), False),
        (nn.Linear(4, 4), False),
        (Switching(), True),
        (Plain(), False),
    ],
)
def test_modules_that_differ_in_training_mode(part: nn.Module, differs: bool) -> None:
    assert bool(differing_parts(nn.Sequential(part))) == differs
    assert not differing_parts(nn.Sequential(part).eval())


def test_a_model_in_training_mode_is_optimized_with_a_warning() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout()), torch.randn(4, 8)
    with pytest.warns(
        TrainingModeWarning, match=r"^Sequential .*1 \(BatchNorm1d\), 2 \(Dropout\).*model\.eval\(\)"
    ) as caught:
        fast = fx.optimize(model, (x,), 0, progress=False)
    assert caught[0].message.optimized is fast  # type: ignore[union-attr]
    assert model.training
    torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-4)


def test_dynamic_sizes_in_training_mode_warn() -> None:
    with pytest.warns(TrainingModeWarning, match=r"^Sequential .*1 \(Dropout\)"):
        fx.optimize(nn.Sequential(nn.Linear(8, 8), nn.Dropout()), ((fx.Dim("T", range(1, 5)), 8),), 0, progress=False)


def test_other_models_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FelixlikeWarning)
        fx.optimize(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), torch.randn(4, 8), 0, progress=False)
