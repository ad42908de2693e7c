"""Tests for torch.compile(model, backend="felixlike"): outputs are right, and unsupported graphs run in PyTorch."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.dynamo import NotCompiledWarning, Options, backend, graph_sizes, read_options
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


def _made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that receives the compiled function of each version."""
    made: list[Any] = []

    class Recorded(backend.CompiledGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self.call)

    monkeypatch.setattr(backend, "CompiledGraph", Recorded)
    return made


def test_the_backend_is_registered() -> None:
    assert "felixlike" in torch._dynamo.list_backends()


def test_a_compiled_module_gives_equal_outputs_for_every_size(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_sizes, "RANGES", replace(graph_sizes.RANGES, batch=10))
    model = _model()
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 6, 4, 9):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x))


def test_reports_name_the_layers_of_the_users_modules(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    made = _made(monkeypatch)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.down(torch.relu(self.up(x)))
            return result

    model, x = nn.Sequential(Block(), Block()).eval(), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="felixlike", options=options)(x), model(x))
    layers = [layer for task in made[0].report.tasks for layer in task.layers]
    assert sorted(layers) == ["0.down", "0.up + relu", "1.down", "1.up + relu"]


def test_a_later_process_reuses_the_compiled_graph(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, options: dict[str, Any]
) -> None:
    made = _made(monkeypatch)
    model, x = _model(), torch.randn(5, 12)
    with torch.no_grad():
        for _ in range(2):
            torch.compiler.reset()
            torch.testing.assert_close(torch.compile(model, backend="felixlike", options=options)(x), model(x))
        next(model.parameters()).mul_(2)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(model, backend="felixlike", options=options)(x), model(x))
    assert len([*(own_cache / "models").iterdir()]) == 2
    assert ["from the cache folder" in call.report.note for call in made] == [False, True, False]


def test_weights_that_a_graph_changes_without_a_name_for_it_are_changed(
    own_cache: Path, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24)).train(), torch.randn(6, 12)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))
    assert not (own_cache / "models").exists()


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


class _Apart(nn.Module):
    """A layer in a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        result: Tensor = torch.relu(self.linear(x))
        return result


def test_layers_that_share_a_graph_have_a_version_each(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _made(monkeypatch)
    model, x = nn.Sequential(*(_Apart() for _ in range(10))).eval(), torch.randn(2, 8)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
        assert len(made) == 10
        for _ in range(7):  # the versions of replaced weights are dropped, and count as changes
            first = model.get_submodule("0.linear")
            assert isinstance(first, nn.Linear)
            first.weight = nn.Parameter(torch.randn(8, 8))
            torch.testing.assert_close(compiled(x), model(x))
        assert len(made) == 17
        first.weight = nn.Parameter(torch.randn(8, 8))
        with pytest.warns(NotCompiledWarning, match="weights .*8 times"):
            torch.testing.assert_close(compiled(x), model(x))


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
    model = nn.Conv1d(3, 4, 3)  # convolutions of dynamic lengths are compiled for each length
    compiled = torch.compile(model, backend="felixlike", options=options | {"sizes": 1}, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x := torch.randn(1, 3, 8)), model(x))
        with pytest.warns(NotCompiledWarning, match="more than 1 set of sizes"):
            torch.testing.assert_close(compiled(x := torch.randn(1, 3, 9)), model(x))
        for length in (8, 9, 10):  # a second warning is an error
            torch.testing.assert_close(compiled(x := torch.randn(1, 3, length)), model(x))


def _versions(monkeypatch: pytest.MonkeyPatch) -> list[backend.CompiledGraph]:
    """Return a list to which compiled versions of graphs are added."""
    made: list[backend.CompiledGraph] = []
    create = backend.CompiledGraph.__init__

    def noted(self: backend.CompiledGraph, *arguments: Any) -> None:
        create(self, *arguments)
        made.append(self)

    monkeypatch.setattr(backend.CompiledGraph, "__init__", noted)
    return made


def test_one_version_serves_all_sizes_in_its_range(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_sizes, "RANGES", replace(graph_sizes.RANGES, batch=8))
    versions = _versions(monkeypatch)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh()).eval()
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=True)
    with torch.no_grad():
        for rows in (4, 7, 2, 8):
            torch.testing.assert_close(compiled(x := torch.randn(rows, 12)), model(x))
        assert len(versions) == 1
        torch.testing.assert_close(compiled(x := torch.randn(9, 12)), model(x))
        assert len(versions) == 2


def test_graphs_that_dynamo_replaces_at_the_next_size_are_not_compiled(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token after a prompt is the first call with a cache, the second one shows that it grows."""
    versions = _versions(monkeypatch)

    def step(x: Tensor, cache: Tensor | None = None) -> Tensor:
        return torch.tanh(x) if cache is None else torch.cat([cache, torch.tanh(x)])

    compiled = torch.compile(step, backend="felixlike", options=options)
    x = torch.randn(2, 8)
    lengths, cache = [], None
    for _ in range(4):
        cache = compiled(x, cache)
        lengths.append(len(versions))
    torch.testing.assert_close(cache, torch.cat([torch.tanh(x)] * 4))
    assert lengths == [1, 1, 2, 2]


def test_graphs_with_more_inputs_are_compiled_at_their_second_call(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = _versions(monkeypatch)

    def scaled(x: Tensor, factor: Tensor | None = None) -> Tensor:
        return torch.tanh(x if factor is None else x * factor)

    compiled = torch.compile(scaled, backend="felixlike", options=options)
    x, factor = torch.randn(2, 8), torch.randn(8)
    for arguments, count in (((x,), 1), ((x, factor), 1), ((x, factor), 2), ((x,), 2), ((x, factor), 2)):
        torch.testing.assert_close(compiled(*arguments), scaled(*arguments))
        assert len(versions) == count


def test_sizes_that_were_equal_by_chance_get_another_version(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = _versions(monkeypatch)

    def products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ x.mT, y @ y.mT

    compiled = torch.compile(products, backend="felixlike", options=options, dynamic=True)
    for first, second in ((5, 5), (6, 6), (6, 7), (5, 5), (7, 6)):
        x, y = torch.randn(first, 8), torch.randn(second, 8)
        torch.testing.assert_close(compiled(x, y), products(x, y))
    assert len(versions) == 2


def test_python_floats_of_dynamic_graphs_are_compiled_in(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = _versions(monkeypatch)

    class Scaled(nn.Module):
        scale = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x * self.scale)

    model = Scaled()
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=True)
    for scale, rows in ((0.5, 4), (0.5, 6), (2.0, 6), (0.5, 5)):
        model.scale = scale
        torch.testing.assert_close(compiled(x := torch.randn(rows, 8)), model(x))
    assert len(versions) == 2


def test_numbers_are_the_same_only_with_their_sign(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    versions = _versions(monkeypatch)

    def inverse(x: Tensor, scale: float) -> Tensor:
        return torch.where(x > 0, x, scale).reciprocal()

    compiled, x = torch.compile(inverse, backend="felixlike", options=options), torch.tensor([1.0, -1.0, 2.0])
    for scale in (3.0, 0.0, -0.0, math.nan, 0.0, -math.nan):
        torch.testing.assert_close(compiled(x, scale), inverse(x, scale), equal_nan=True)
    assert len(versions) == 4


def test_graphs_that_enable_gradients_are_left_to_pytorch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_warned_of_gradients", False)
    model, x = nn.Linear(12, 8), torch.randn(4, 12)

    def energy(x: Tensor) -> Tensor:
        with torch.enable_grad():
            result: Tensor = model(x).square()
        return result

    compiled = torch.compile(energy, backend="felixlike", options=options)
    with torch.no_grad(), pytest.warns(NotCompiledWarning, match="gradients"):
        loss: Any = compiled(x)
    loss.sum().backward()
    assert model.weight.grad is not None


def test_graphs_are_not_run_on_the_callers_state(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    versions = _versions(monkeypatch)

    class Counted(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor, seen: Tensor) -> Tensor:
            self.calls += 1
            seen += x.sum()
            return torch.tanh(x) * self.calls

    model = Counted()
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=True)
    seen = torch.zeros(2)
    for rows in (4, 6):
        compiled(torch.ones(rows, 3), seen)
    assert versions
    assert model.calls == 2
    assert seen.tolist() == [30.0, 30.0]


def test_tables_of_positions_limit_the_sizes(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    versions = _versions(monkeypatch)

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8)

        def forward(self, x: Tensor) -> Tensor:
            positions: Tensor = self.table(torch.arange(x.shape[1]))
            return x + positions

    model = Positions().eval()
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (5, 9, 16, 20):
            torch.testing.assert_close(compiled(x := torch.randn(2, length, 8)), model(x))
    assert len(versions) == 2  # up to 16, and up to 20


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


def test_graphs_that_compute_nothing_are_left_to_pytorch_without_a_warning(options: dict[str, Any]) -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        return x.view(4, 3).mT

    x = torch.randn(2, 6)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert torch.equal(torch.compile(views, backend="felixlike", options=options)(x), views(x))


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
        ({"precision": "half"}, {}, "'half' is not a precision"),
        ({"precision": "tf32"}, {}, "tf32 needs tensor cores, but a CPU has none"),
        ({"precision": None}, {}, "None is not a precision"),
        ({}, {"FELIXLIKE_PRECISION": "bf16"}, "'bf16' is not a precision"),
        ({"tolerance": -1e-3}, {}, "tolerance.*-0.001"),
        ({"tolerance": math.nan}, {}, "tolerance.*nan"),
        ({}, {"FELIXLIKE_TOLERANCE": "small"}, "tolerance.*'small'"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        read_options(given, environment)


def test_the_precision_and_its_tolerance_are_those_of_optimize(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """One row takes the time of loading the weights, which are rounded on every processor."""
    made = _made(monkeypatch)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).eval(), torch.randn(1, 1024)
    with torch.no_grad():
        exact, outputs = model(x), []
        cases: list[dict[str, Any]] = [{}, {"precision": "bfloat16"}, {"precision": "bfloat16", "tolerance": 1e-6}]
        for more in cases:
            torch._dynamo.reset()
            outputs.append(torch.compile(model, backend="felixlike", options={**options, **more})(x))
    precisions = [{task.precision for task in call.report.tasks} for call in made]
    assert precisions == [{"float32"}, {"bfloat16"}, {"float32"}]
    errors = [float((output - exact).abs().max() / exact.abs().max()) for output in outputs]
    assert errors[0] < 1e-5
    assert 1e-4 < errors[1] < 2e-2
    assert errors[2] < 1e-5


def test_dynamic_sizes_are_compiled_in_the_precision(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setattr(graph_sizes, "RANGES", replace(graph_sizes.RANGES, batch=6))
    made = _made(monkeypatch)
    model = _model()
    compiled = torch.compile(model, backend="felixlike", dynamic=True, options={**options, "precision": "bfloat16"})
    with torch.no_grad():
        for rows in (4, 6):
            x = torch.randn(rows, 12)
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    assert [call.report.precision for call in made] == ["bfloat16"]


def test_autocast_around_calls_of_a_compiled_model_gives_its_answers(options: dict[str, Any]) -> None:
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        for casts in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                got, expected = compiled(x), model(x)
            assert got.dtype == expected.dtype == (torch.bfloat16 if casts else torch.float32)
            torch.testing.assert_close(got, expected)
