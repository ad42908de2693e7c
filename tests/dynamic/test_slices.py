"""Test models whose batch is computed in slices: when they are tried, outputs, reports, saving and exporting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike.dynamic import batch as batch_parts
from felixlike.dynamic import slices
from felixlike.errors import InputMismatch
from felixlike.frontend import import_model
from felixlike.hardware import host_target, target_device
from felixlike.runtime import Chunked
from felixlike.tuning.config import RunConfig

_BATCH = 8


class _Net(nn.Module):
    """A model with small weights and large tensors; `mixed` makes samples depend on each other."""

    def __init__(self, *, mixed: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.dense = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1), nn.Linear(16, 5)
        self.mixed = mixed

    def forward(self, image: Tensor, scale: Tensor) -> dict[str, Tensor]:
        seen = self.second(self.first(image).relu()).relu().mean((2, 3))
        return {"scores": self.dense(seen - seen.mean(0) if self.mixed else seen), "seen": seen * scale}


def _inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn((_BATCH, 3, 16, 16), generator=generator), torch.randn(16, generator=generator)


def _net(*, mixed: bool = False) -> _Net:
    torch.manual_seed(0)
    return _Net(mixed=mixed).eval()


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe a last-level cache of 80 KiB, in which the tensors of two samples fit, and slow memory."""
    monkeypatch.setattr(slices, "target_device", lambda target: _described(target))


def _described(target: object) -> object:
    return replace(target_device(target), l3_bytes=80 * 1024, memory_bandwidth=1e8)


@pytest.fixture
def any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use slices whether they are faster or not."""
    monkeypatch.setattr(slices, "_LIMITS", replace(slices._LIMITS, faster=1e9))


def _optimized(model: nn.Module, *, seconds: float | None = None) -> fx.Optimized:
    return fx.optimize(model, _inputs(), trials=2, seconds=seconds, progress=False)


@pytest.mark.usefixtures("small_cache", "any_time")
def test_a_batch_in_slices_gives_the_outputs_of_the_whole(tmp_path: Path) -> None:
    optimized = _optimized(_net())
    compiled = optimized._compiled
    assert isinstance(compiled, Chunked)
    assert compiled.parts.keys() == {2, _BATCH}
    want = _net()(*_inputs())
    optimized.save(tmp_path / "model.flx")
    for each in (optimized, fx.load(tmp_path / "model.flx")):
        got = each(*_inputs())
        assert got.keys() == want.keys()
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-5)
    report = optimized.report
    assert "the batch of 8 is computed in slices of 2" in str(report)
    assert report.error < 1e-5
    assert report.latency > 0
    assert {task.weight for task in report.tasks} == {4.0}
    with pytest.raises(InputMismatch, match="image"):
        optimized(torch.zeros(2, 3, 16, 16), torch.zeros(16))
    optimized.export_library(tmp_path / "model.so")
    assert (tmp_path / "model.so").stat().st_size > 0


@pytest.mark.usefixtures("small_cache", "any_time")
def test_a_model_whose_samples_depend_on_each_other_stays_whole() -> None:
    optimized = _optimized(_net(mixed=True))
    assert not isinstance(optimized._compiled, Chunked)
    want = _net(mixed=True)(*_inputs())["scores"]
    torch.testing.assert_close(optimized(*_inputs())["scores"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("seconds", [None, 100.0])
def test_slices_that_are_slower_are_not_used(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit, the whole is tuned then. With one, it has predicted schedules."""
    monkeypatch.setattr(batch_parts, "_timed", lambda batch, parts: {2: 1.0, _BATCH: 4.0})
    optimized = _optimized(_net(), seconds=seconds)
    assert not isinstance(optimized._compiled, Chunked)
    assert (optimized.report.trials > 0) == (seconds is None)
    want = _net()(*_inputs())["seen"]
    torch.testing.assert_close(optimized(*_inputs())["seen"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cache", "want"), [(160, 4), (80, 2), (40, 1), (20, None), (10_000, None)])
def test_slices_have_the_most_samples_that_fit_into_the_cache(cache: int, want: int | None) -> None:
    """A sample has 16 KiB in the largest tensors. In 10 MB the whole batch fits, in 20 KiB not one sample does."""
    imported = import_model(_net(), _inputs())
    device = replace(target_device(imported.target), l3_bytes=cache * 1024, memory_bandwidth=1e8)
    assert slices._slice(imported, _BATCH, 2_000, device) == want


@pytest.mark.usefixtures("small_cache")
def test_slices_are_not_tried_for_weights_of_unknown_sizes() -> None:
    config = RunConfig(host_target(), "", trials=2)
    assert slices._may_slice(_net(), config)
    assert not slices._may_slice(nn.Sequential(nn.LazyConv2d(4, 1)), config)
    assert not slices._may_slice(_net(), replace(config, trials=0))


def test_the_first_sizes_of_nested_inputs_are_found() -> None:
    given = {"a": (torch.zeros(3, 2), [(5, 1), torch.tensor(1.0)]), "b": (7, 8)}
    assert sorted(slices._first_sizes((given, None, 2.0, "x"))) == [3, 5, 7]


def test_slices_are_not_tried_where_the_arithmetic_takes_most_of_the_time() -> None:
    imported = import_model(_net(), _inputs())
    device = replace(target_device(imported.target), l3_bytes=80 * 1024, memory_bandwidth=1e15)
    assert slices._slice(imported, _BATCH, 2_000, device) is None
