"""Test `Optimized` objects: copies, pickling, use in other processes and inspection."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from collections.abc import Sized
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import felixlike as fx
from felixlike.errors import CompilationFailed, InvalidArtefact
from felixlike.frontend import import_model
from felixlike.report import Report
from felixlike.runtime import compile_model


class Scale(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> dict[str, Any]:
        return {"product": x * by, "rest": (x + by, None)}


class Scaled(Dataset[Tensor], Sized):
    """A data set whose elements a tuned model computes."""

    def __init__(self, optimized: fx.Optimized) -> None:
        self.optimized = optimized

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        product: Tensor = self.optimized(torch.full((4, 20), float(index)), torch.ones(20))["product"]
        return product


@pytest.fixture(scope="module")
def optimized() -> fx.Optimized:
    report = Report("Scale", (), 3, 0, 0.0, 0.0, float("nan"), "", "", "", "", {"felixlike": "0"}, 0)
    return fx.Optimized(compile_model(import_model(Scale(), ((4, 20), (20,)))), report)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 20), torch.randn(20)


def test_copies_give_equal_outputs(optimized: fx.Optimized) -> None:
    x, by = inputs()
    want = optimized(x, by)["product"]
    shallow, deep = copy.copy(optimized), copy.deepcopy({"model": optimized})["model"]
    pickled = pickle.loads(pickle.dumps(optimized))
    for other in (shallow, deep, pickled, copy.deepcopy(pickled)):
        assert isinstance(other, fx.Optimized)
        assert torch.equal(other(x, by=by)["product"], want)
        assert other.report.trials == 3
        assert other.outputs == optimized.outputs


def test_invalid_pickles_raise(optimized: fx.Optimized) -> None:
    data = bytearray(pickle.dumps(optimized))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(InvalidArtefact, match="a pickled model: the file is damaged"):
        pickle.loads(bytes(data))


def test_pickling_needs_a_compiler_once(optimized: fx.Optimized, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = pickle.loads(pickle.dumps(optimized))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilationFailed, match="no C compiler was found"):
        pickle.dumps(optimized)
    assert pickle.dumps(loaded)
    copy.deepcopy(optimized)


def test_spawned_workers_give_equal_outputs(optimized: fx.Optimized) -> None:
    batches = DataLoader(Scaled(optimized), batch_size=3, num_workers=1, multiprocessing_context="spawn")
    (batch,) = batches
    assert torch.equal(batch, torch.arange(3.0)[:, None, None].expand(3, 4, 20))


def test_inputs_and_outputs_are_described(optimized: fx.Optimized) -> None:
    assert [str(spec) for spec in optimized.inputs] == ["x: float32[4, 20]", "by: float32[20]"]
    assert str(optimized.outputs["product"]) == "output['product']: float32[4, 20]"
    total, nothing = optimized.outputs["rest"]
    assert (total.shape, total.dtype, nothing) == ((4, 20), "float32", None)
    assert str(inspect.signature(optimized)) == "(x: 'float32[4, 20]', by: 'float32[20]')"
    assert list(inspect.signature(fx.Optimized).parameters) == ["compiled", "report"]
    assert repr(optimized) == "<optimized Scale(x: float32[4, 20], by: float32[20])>"
    assert "tuned model" in str(inspect.getdoc(optimized))
    assert callable(optimized)


def test_unreferenced_models_are_freed(optimized: fx.Optimized) -> None:
    other = copy.deepcopy(optimized)
    other(*inputs())
    gone = weakref.ref(other)
    del other
    assert gone() is None
