"""torch.compile(model, backend="felixlike"): right answers, whatever changes; what cannot be taken runs as before."""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike import dynamo
from felixlike.api import optimize
from felixlike.dynamo import NotCompiled, Options, read_options
from felixlike.errors import InvalidOption


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


def test_the_backend_is_known_by_its_name() -> None:
    assert "felixlike" in torch._dynamo.list_backends()


def test_a_compiled_module_computes_the_same_for_every_size(options: dict[str, Any]) -> None:
    model = _model()
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 6, 4, 9):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x))


def test_weights_that_change_are_noticed(options: dict[str, Any]) -> None:
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


def test_inference_mode(options: dict[str, Any]) -> None:
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x))


def test_training_graphs_are_left_alone(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "_Graph", None)
    model, x = _model().train(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_more_sizes_than_wanted_run_as_before(options: dict[str, Any]) -> None:
    model = nn.Linear(12, 24)
    compiled = torch.compile(model, backend="felixlike", options=options | {"sizes": 1}, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x := torch.randn(4, 12)), model(x))
        with pytest.warns(
            NotCompiled, match=r"runs as before: it was called with more than 1 sizes; option sizes= allows"
        ):
            torch.testing.assert_close(compiled(x := torch.randn(5, 12)), model(x))
        torch.testing.assert_close(compiled(x := torch.randn(4, 12)), model(x))


def test_what_cannot_be_taken_runs_as_before_with_one_warning(options: dict[str, Any]) -> None:
    def spectrum(x: Tensor) -> Tensor:
        found: Tensor = torch.fft.rfft(x).abs()
        return found

    compiled, x = torch.compile(spectrum, backend="felixlike", options=options), torch.randn(3, 16)
    with pytest.warns(NotCompiled, match="a graph of . nodes runs as before: .*fft"):
        torch.testing.assert_close(compiled(x), spectrum(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x), spectrum(x))


def test_graphs_that_write_to_their_inputs_run_as_before(options: dict[str, Any]) -> None:
    def step(x: Tensor, cache: Tensor) -> Tensor:
        cache[:, 2] = x
        return cache.sum(1)

    compiled, cache = torch.compile(step, backend="felixlike", options=options), torch.zeros(3, 4)
    with (
        torch.no_grad(),
        pytest.warns(NotCompiled, match="runs as before: InvalidModel: graph: it changes input . in place"),
    ):
        assert compiled(torch.ones(3), cache).tolist() == [1.0] * 3
    assert cache[:, 2].tolist() == [1.0] * 3


def test_several_outputs_and_views(options: dict[str, Any]) -> None:
    def split(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        left, right = (x @ y).chunk(2, dim=1)
        return {"left": left.relu(), "right": right.t()}

    compiled = torch.compile(split, backend="felixlike", options=options)
    x, y = torch.randn(6, 5), torch.randn(5, 8)
    torch.testing.assert_close(compiled(x, y), split(x, y))


def test_what_is_tuned_in_the_background_takes_over(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = _model(), torch.randn(4, 12)
    with torch.no_grad():
        optimize(model, (x,), trials=0, progress=False).save(tmp_path / "tuned")
    asked: list[Path] = []

    def start(folder: Path, wanted: Options) -> subprocess.Popen[bytes]:
        exported = torch.export.load(folder / "graph.pt2").module()
        torch.testing.assert_close(exported(x)[0], model(x))
        asked.append(folder)
        assert wanted.seconds == 30
        return subprocess.Popen(["cp", str(tmp_path / "tuned"), str(folder / "tuned.felixlike")])

    monkeypatch.setattr(dynamo, "_start", start)
    made: list[Any] = []
    usual = dynamo._exchange

    def exchange(found: Any, *others: Any) -> None:
        made.append((found, found.call))
        usual(found, *others)

    monkeypatch.setattr(dynamo, "_exchange", exchange)
    compiled = torch.compile(model, backend="felixlike", options=options | {"seconds": 30})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        end = time.monotonic() + 60
        while (not asked or asked[0].exists()) and time.monotonic() < end:
            time.sleep(0.05)
        (found,) = made
        assert found[0].call is not found[1]
        found[0].call = lambda *_: (torch.zeros(4, 8),)
        assert not compiled(x).any()


def test_the_command_that_tunes_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    dynamo._start(tmp_path, Options(seconds=7.0, trials=3, store="s.sqlite"))
    words = commands[0][commands[0].index("felixlike") :]
    assert words[:3] == ["felixlike", "tune", str(tmp_path / "graph.pt2")]
    assert words[words.index("--seconds") + 1] == "7.0"
    assert words[words.index("--store") + 1] == "s.sqlite"
    assert words[words.index("--trials") + 1] == "3"


def test_options_come_from_the_call_then_from_the_environment() -> None:
    environment = {"FELIXLIKE_SECONDS": "12.5", "FELIXLIKE_BACKGROUND": "0", "FELIXLIKE_SIZES": ""}
    assert read_options({}, environment) == Options(seconds=12.5, background=False)
    assert read_options({"seconds": 3}, environment).seconds == 3.0
    assert read_options({}, {}) == Options()


@pytest.mark.parametrize(
    ("given", "environment", "text"),
    [
        ({"second": 3}, {}, "there is no option 'second'.*seconds"),
        ({"seconds": -1}, {}, "seconds is -1"),
        ({"trials": 1.5}, {}, "trials is 1.5"),
        ({"background": "yes"}, {}, "background is 'yes'"),
        ({}, {"FELIXLIKE_SECONDS": "soon"}, "seconds is 'soon'"),
        ({}, {"FELIXLIKE_BACKGROUND": "perhaps"}, "background is 'perhaps'"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        read_options(given, environment)
