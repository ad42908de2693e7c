"""Tests for PyTorch models as references: in their own precision, in float64, and with perturbed values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felixlike.frontend import import_model
from felixlike.frontend.originals import original_of
from felixlike.frontend.originals.eager import TorchOriginal
from felixlike.frontend.originals.original import moved_by_a_rounding

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["module", "program"])
def original(request: pytest.FixtureRequest) -> TorchOriginal:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).eval()
    source = model if request.param == "module" else torch.export.export(model, (X,))
    evaluator = original_of(source, import_model(source, (X,)).signature)
    assert isinstance(evaluator, TorchOriginal)
    return evaluator


def test_outputs_in_native_and_double_precision(original: TorchOriginal) -> None:
    native, wide = original.outputs((X,)), original.outputs((X,), wide=True)
    assert (native.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert 0 < (native - wide).abs().max() < 1e-6
    assert (original.name(wide=True), original.name(wide=False)) == ("float64", "float32")


def test_a_perturbation_is_small_and_does_not_persist(original: TorchOriginal) -> None:
    before, x = original.outputs((X,)), X.clone()
    first, again, other = (original.outputs((X,), moved=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0 < (first - before).abs().max() < 1e-5
    assert torch.equal(original.outputs((X,)), before)
    assert torch.equal(X, x)


def test_memory_counts_the_copy_and_the_float64_values() -> None:
    original = original_of(nn.Linear(100, 50, bias=False), import_model(nn.Linear(100, 50), ((1, 100),)).signature)
    assert original.memory(wide=False) == 4 * 5000
    assert original.memory(wide=True) == (4 + 8) * 5000


def test_shared_weights_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert original_of(model, import_model(model, ((1, 10),)).signature).memory(wide=False) == 400


def test_only_floats_are_perturbed() -> None:
    numbers, integers = torch.ones(1000), torch.arange(5)
    moved_by_a_rounding([numbers, integers], 0)
    eps = torch.finfo(torch.float32).eps
    assert set(numbers.tolist()) == {1 + eps, 1 - eps}
    assert integers.tolist() == [0, 1, 2, 3, 4]
