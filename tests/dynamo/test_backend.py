"""Tests for torch.compile(model, backend="felixlike"): outputs are right, and unsupported graphs run in PyTorch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.dynamo import NotCompiledWarning, Options, backend, read_options
from felixlike.errors import InvalidOption, StorageWarning


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"seconds": 0, "store": str(tmp_path / "store.sqlite")}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.BatchNorm1d(24), nn.Linear(24, 8)).eval()


def test_the_backend_is_registered() -> None:
    assert "felixlike" in torch._dynamo.list_backends()


def test_a_compiled_module_gives_equal_outputs_for_every_size(options: dict[str, Any]) -> None:
    model = _model()
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 6, 4, 9):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x))


def test_changed_weights_are_used(options: dict[str, Any]) -> None:
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad():
        before = compiled(x)
        last = model.get_submodule("3")
        assert isinstance(last, nn.Linear)
        last.weight.mul_(2.0)
        after = compiled(x)
        torch.testing.assert_close(after, model(x))
        assert not torch.allclose(before, after)
        model.load_state_dict(_model().state_dict())
        torch.testing.assert_close(compiled(x), before)


def test_graphs_whose_weights_keep_changing_are_left_to_pytorch(options: dict[str, Any]) -> None:
    model, x = nn.Linear(12, 8).eval(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)

    def call() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        model.weight.data.mul_(1.1)

    for _ in range(8):
        call()
    with pytest.warns(NotCompiledWarning, match="weights .*8 times"):
        call()
    call()


@pytest.mark.usefixtures("own_cache")
def test_an_unusable_data_folder_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options={"seconds": 1})
    with torch.no_grad(), pytest.warns(StorageWarning, match=re.escape(str(tmp_path / "file"))):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_outputs_are_equal_in_inference_mode(options: dict[str, Any]) -> None:
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x))


def test_training_graphs_are_left_to_pytorch_with_one_warning(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_warned_of_gradients", False)
    model, x = _model().train(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with pytest.warns(NotCompiledWarning, match=r"gradients.*torch\.no_grad\(\)"):
        compiled(x).sum().backward()
    torch.compile(_model(), backend="felixlike", options=options)(x).sum().backward()  # a second warning is an error
    assert all(p.grad is not None for p in model.parameters())


def test_graphs_with_more_sizes_than_allowed_are_left_to_pytorch(options: dict[str, Any]) -> None:
    model = nn.Linear(12, 24)
    compiled = torch.compile(model, backend="felixlike", options=options | {"sizes": 1}, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x := torch.randn(4, 12)), model(x))
        with pytest.warns(NotCompiledWarning, match="more than 1 set of sizes"):
            torch.testing.assert_close(compiled(x := torch.randn(5, 12)), model(x))
        for rows in (4, 5, 6):  # a second warning is an error
            torch.testing.assert_close(compiled(x := torch.randn(rows, 12)), model(x))


def test_unsupported_graphs_are_left_to_pytorch_with_one_warning(options: dict[str, Any]) -> None:
    def spectrum(x: Tensor) -> Tensor:
        magnitudes: Tensor = torch.fft.rfft(x).abs()
        return magnitudes

    compiled, x = torch.compile(spectrum, backend="felixlike", options=options), torch.randn(3, 16)
    with pytest.warns(NotCompiledWarning, match="a graph of . nodes: .*fft"):
        torch.testing.assert_close(compiled(x), spectrum(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x), spectrum(x))


def test_graphs_write_to_their_inputs(options: dict[str, Any]) -> None:
    def step(x: Tensor, cache: Tensor) -> Tensor:
        cache[:, 2] = x
        return cache.sum(1)

    compiled, cache = torch.compile(step, backend="felixlike", options=options), torch.zeros(3, 4)
    with torch.no_grad():
        assert compiled(torch.ones(3), cache).tolist() == [1.0] * 3
        assert compiled(torch.full((3,), 2.0), cache).tolist() == [2.0] * 3
    assert cache[:, 2].tolist() == [2.0] * 3
    assert cache.sum() == 6


def test_several_outputs_and_views_are_equal(options: dict[str, Any]) -> None:
    def split(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        left, right = (x @ y).chunk(2, dim=1)
        return {"left": left.relu(), "right": right.t()}

    compiled = torch.compile(split, backend="felixlike", options=options)
    x, y = torch.randn(6, 5), torch.randn(5, 8)
    torch.testing.assert_close(compiled(x, y), split(x, y))


def test_options_of_the_call_override_the_environment() -> None:
    environment = {"FELIXLIKE_SECONDS": "12.5", "FELIXLIKE_BACKGROUND": "0", "FELIXLIKE_SIZES": ""}
    assert read_options({}, environment) == Options(seconds=12.5, background=False)
    assert read_options({"seconds": 3}, environment).seconds == 3.0
    assert read_options({}, {}) == Options()


@pytest.mark.parametrize(
    ("given", "environment", "text"),
    [
        ({"second": 3}, {}, "'second'.*seconds"),
        ({"seconds": -1}, {}, "seconds.*-1"),
        ({"trials": 1.5}, {}, r"trials.*1\.5"),
        ({"background": "yes"}, {}, "background.*'yes'"),
        ({}, {"FELIXLIKE_SECONDS": "soon"}, "seconds.*'soon'"),
        ({}, {"FELIXLIKE_BACKGROUND": "perhaps"}, "background.*'perhaps'"),
        ({"watch_weights": 1}, {}, "watch_weights.*1"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        read_options(given, environment)
