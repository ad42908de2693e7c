"""Test models with convolutions and a dynamic batch size: splitting into parts, outputs at all sizes, saving and
loading.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import felixlike as fx
from felixlike.dynamic.batch import batch_of
from felixlike.dynamic.optimize import shared
from felixlike.dynamic.sources import read_network
from felixlike.errors import CompilationFailed, InputMismatch, InvalidArtefact, VerificationFailed
from felixlike.runtime import Chunked

_N = fx.Dim("N", range(1, 8))


class _Net(torch.nn.Module):
    """A model with two inputs that have a batch axis, one without, and two outputs."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, channels, 3), torch.nn.BatchNorm2d(channels)
        self.dense = torch.nn.Linear(channels, 5)

    def forward(self, image: torch.Tensor, more: torch.Tensor, all_: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = torch.relu(self.norm(self.convolution(image))).mean((2, 3))
        return {"scores": self.dense(seen) + more, "seen": seen * all_}


class _Mixed(torch.nn.Module):
    """A model in which each sample's output depends on the other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.convolution(image)
        return result - result.mean(0, keepdim=True)


def _inputs(size: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(size)
    return tuple(torch.randn(shape, generator=generator) for shape in ((size, 3, 7, 7), (size, 5), (4,)))


def _net() -> _Net:
    torch.manual_seed(0)
    return _Net().eval()


@pytest.fixture(scope="module")
def optimized() -> fx.Optimized:
    shapes = {"image": (_N, 3, 7, 7), "more": (_N, 5), "all_": (4,)}
    return fx.optimize(_net(), shapes, rounds=0, progress=False)


def _parts(optimized: Any) -> Chunked:
    compiled = optimized._compiled
    assert isinstance(compiled, Chunked)
    return compiled


def test_outputs_are_correct_at_every_batch_size(optimized: fx.Optimized) -> None:
    parts = _parts(optimized)
    assert list(parts.parts) == [1, 4]
    for size in range(1, 8):
        got, want = optimized(*_inputs(size)), _net()(*_inputs(size))
        assert list(got) == list(want)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-5)
        assert sum(parts.steps(size)) == size
    assert [spec.shape for spec in optimized.inputs] == [(7, 3, 7, 7), (7, 5), (4,)]
    assert {task.name.rpartition(", ")[2] for task in optimized.report.tasks} == {"N=1", "N=4"}
    assert "parts of 1, 4 for N in 1…7: 7 = " in str(optimized.report)
    assert optimized.report.error < 1e-5


def test_saved_pickled_and_copied_models_give_equal_outputs(optimized: fx.Optimized, tmp_path: Path) -> None:
    optimized.save(tmp_path / "model.fx")
    others = fx.load(tmp_path / "model.fx"), pickle.loads(pickle.dumps(optimized)), copy.deepcopy(optimized)
    for other in others:
        assert other.report.stopped == optimized.report.stopped
        for size in (1, 4, 7):
            got, want = other(*_inputs(size)), optimized(*_inputs(size))
            assert all(torch.equal(got[name], want[name]) for name in want)
        with pytest.raises(InputMismatch, match=r"N is 8 in input 'image'.* 1 to 7"):
            other(*_inputs(8))
    with pytest.raises(CompilationFailed, match=r"export_library: .*: 1, 4"):
        optimized.export_library(tmp_path / "model.so")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda chunks: chunks.pop("dim"), "dim, key or parts is missing"),
        (lambda chunks: chunks.update(key=3), "dim, key or parts has a value"),
        (lambda chunks: chunks.update(dim=["N", 1, 2**40]), f"1 to {2**40}"),
        (lambda chunks: chunks.update(parts=[[4, 1.0], [1, "1"]]), "seconds"),
        (lambda chunks: chunks.update(parts=[[1, 1.0], [5, 1.0]]), "batch size 5 is missing"),
        (lambda chunks: chunks.update(parts=[[1, 1.0]]), "two or more .*got 1"),
        (lambda chunks: chunks.update(dim=["N", 0, 7]), "0 to 7"),
    ],
)
def test_files_with_invalid_metadata_raise(
    optimized: fx.Optimized, change: Callable[[Any], object], words: str, tmp_path: Path
) -> None:
    optimized.save(tmp_path / "model.fx")
    _edit_archive(tmp_path / "model.fx", lambda meta, _: change(meta["chunks"]))
    with pytest.raises(InvalidArtefact, match=words):
        fx.load(tmp_path / "model.fx")


def test_a_part_of_another_model_raises(optimized: fx.Optimized, tmp_path: Path) -> None:
    other = fx.optimize(torch.nn.Conv2d(3, 4, 3), ((4, 3, 7, 7),), rounds=0, progress=False)
    optimized.save(tmp_path / "model.fx")
    other.save(tmp_path / "other.fx")
    _edit_archive(
        tmp_path / "model.fx", lambda _, files: files.update({"part-4.felix": (tmp_path / "other.fx").read_bytes()})
    )
    with pytest.raises(InvalidArtefact, match=r"model\.fx: .*inputs, outputs or target"):
        fx.load(tmp_path / "model.fx")


def _edit_archive(path: Path, change: Callable[[Any, dict[str, bytes]], object]) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(files.pop("meta.json"))
    change(meta, files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {"meta.json": json.dumps(meta).encode(), **files}.items():
            archive.writestr(name, content)
    path.write_bytes(buffer.getvalue())


def test_an_exported_program_with_a_dynamic_batch_is_split_into_parts() -> None:
    dynamic = {"image": {0: torch.export.Dim("B", min=1, max=5)}, "more": {0: torch.export.Dim("B", min=1, max=5)}}
    program = torch.export.export(_net(), _inputs(3), dynamic_shapes={**dynamic, "all_": None})
    optimized_program = fx.optimize(program, rounds=0, progress=False)
    assert list(_parts(optimized_program).parts) == [1, 4]
    for size in (1, 3, 5):
        torch.testing.assert_close(
            optimized_program(*_inputs(size))["seen"], _net()(*_inputs(size))["seen"], rtol=1e-5, atol=1e-5
        )


def test_budgets_are_divided_among_parts_and_parts_are_timed(tmp_path: Path) -> None:
    store = tmp_path / "runs.sqlite"
    shapes = ((fx.Dim("N", [2, 3]), 3, 9, 9),)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    optimized_model = fx.optimize(model, shapes, trials=7, store=store, progress=False)
    parts = _parts(optimized_model)
    assert list(parts.parts) == [1, 2, 3]
    assert optimized_model.report.trials <= 7
    assert all(0 < seconds < 1 for seconds in parts.seconds.values())
    assert parts.seconds[1] != 1.0
    for size in (2, 3):
        x = torch.randn(size, 3, 9, 9)
        torch.testing.assert_close(optimized_model(x), model(x), rtol=1e-5, atol=1e-5)
    assert [limits["trials"] for limits in shared({"trials": 7, "seconds": 6.0, "rounds": None}, 3)] == [2, 2, 3]
    assert [limits["seconds"] for limits in shared({"trials": 7, "seconds": 6.0, "rounds": None}, 3)] == [2.0] * 3


def test_batches_with_dependent_samples_are_not_split() -> None:
    optimized_model = fx.optimize(_Mixed().eval(), ((_N, 3, 6, 6),), rounds=0, progress=False)
    assert not isinstance(optimized_model._compiled, Chunked)


@pytest.mark.parametrize("example", [torch.randint(0, 256, (1, 3, 6, 6)), torch.zeros(1, 3, 6, 6)])
def test_samples_of_integers_that_depend_on_each_other_are_noticed(example: torch.Tensor) -> None:
    """The example is one sample, whose repetitions have the mean of each of them."""

    class Bytes(_Mixed):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return super().forward(image.float())

    class Alone(Bytes):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.convolution(image.float())
            return result

    for model, splits in ((Bytes().eval(), False), (Alone().eval(), True)):
        source, dims = read_network(model, (example.to(torch.uint8),), ({0: _N},))
        assert (batch_of(model, source, dims) is not None) == splits


def test_parts_that_do_not_cover_a_range_raise(optimized: fx.Optimized) -> None:
    parts = _parts(optimized)
    assert Chunked(parts.parts, {1: 1.0, 4: 9.0}, ("N", 1, 7)).steps(7) == [1] * 7
    assert Chunked(parts.parts, {1: 1.0, 4: 2.0}, ("N", 1, 7)).steps(7) == [4, 1, 1, 1]
    for least, most in ((0, 7), (5, 4)):
        with pytest.raises(ValueError, match=f"1, 4 .* {least} to {most}"):
            Chunked(parts.parts, parts.seconds, ("N", least, most))


def test_models_whose_outputs_have_another_rank_for_one_sample_are_not_split() -> None:
    """Its part for one sample would not match the others."""

    class Squeezed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 4, 3)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.convolution(image).mean((2, 3), keepdim=True).squeeze()
            return result

    with pytest.raises(VerificationFailed, match=r"N = 1\); there, the model computes with other operators"):
        fx.optimize(Squeezed().eval(), ((_N, 3, 6, 6),), rounds=0, progress=False)
    fast = fx.optimize(Squeezed().eval(), ((fx.Dim("N", range(2, 8)), 3, 6, 6),), rounds=0, progress=False)
    assert not isinstance(fast._compiled, Chunked)
