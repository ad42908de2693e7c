"""Tests for kinds of models: modules, exported programs, ONNX files, and objects that are refused."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import (
    DynamicControlFlow,
    EmptyModel,
    ExportFailed,
    FelixlikeError,
    InvalidModel,
    InvalidShape,
    NondeterministicModelWarning,
    RandomOperator,
    UnsupportedOperator,
)
from usage.ways import Refused, answers_alike

SIZES = (2, 16)


def printing(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


def module_of(function: Callable[..., Any]) -> nn.Module:
    """Return a module whose forward calls the function."""

    class FunctionModule(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return FunctionModule().eval()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lstm(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class Tied(nn.Module):
    """A model with two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


class Hooked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 4)
        self.register_forward_hook(lambda module, args, output: output * 2)


class Scaled(nn.Module):
    """A model with a parameter outside of any layer and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0, 1, 16))
        self.register_buffer("shift", torch.arange(16.0), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.scale + self.get_buffer("shift")


GOOD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(16, 4), SIZES),
    "layers": (lambda: nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8)), SIZES),
    "in training mode": (lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU()).train(), SIZES),
    "image": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), (1, 3, 8, 8)),
    "recurrent": (Recurrent, (1, 2, 4)),
    "attention": (Attention, (1, 4, 8)),
    "tied weights": (Tied, SIZES),
    "hooks": (Hooked, SIZES),
    "bare parameters": (Scaled, SIZES),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)), SIZES),
    "frozen": (lambda: nn.Linear(16, 4).requires_grad_(False), SIZES),
    "of torch.compile": (lambda: torch.compile(nn.Linear(16, 4), backend="eager"), SIZES),  # type: ignore[dict-item,return-value]
    "dict output": (lambda: module_of(lambda x: {"sum": x.sum(-1), "rest": [x * 2, None, 3]}), SIZES),
    "tuple output": (lambda: module_of(lambda x: (x + 1, (x.exp(), x > 0))), SIZES),
    "scalar output": (lambda: module_of(lambda x: x.mean()), SIZES),
    "integer output": (lambda: module_of(lambda x: x.argmax(-1)), SIZES),
    "its input among its outputs": (lambda: module_of(lambda x: (x, x + 1)), SIZES),
    "the same output twice": (lambda: module_of(lambda x: [x.sin()] * 2), SIZES),
    "a constant output": (lambda: module_of(lambda x: (x + 1, torch.ones(3))), SIZES),
    "a view as output": (lambda: module_of(lambda x: (x * 2).T), SIZES),
    "in place": (lambda: module_of(lambda x: x.clone().mul_(2).add_(1)), SIZES),
    "one element": (lambda: module_of(lambda x: x + 1), (1,)),
    "printing": (lambda: module_of(printing), SIZES),
    "a loop": (lambda: module_of(lambda x: sum(x * i for i in range(3))), SIZES),
    "weights of no_grad": (lambda: _made_in(torch.no_grad()), SIZES),
    "weights of inference_mode": (lambda: _made_in(torch.inference_mode()), SIZES),
}


def _made_in(mode: Any) -> nn.Module:
    with mode:
        return nn.Linear(16, 4)


@pytest.mark.parametrize("way", GOOD)
def test_outputs_match_the_model_s(way: str) -> None:
    torch.manual_seed(0)
    make, sizes = GOOD[way]
    model = make()
    training = model.training
    fast = fx.optimize(model, (sizes,), 0, progress=False)
    assert model.training is training
    answers_alike(fast, model.eval(), torch.randn(sizes))


def test_a_model_in_training_mode_is_tuned_in_eval_mode() -> None:
    """Tuning a model in training mode warns if the mode makes a difference."""
    model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).train()
    with pytest.warns(fx.errors.TrainingModeWarning):
        fast = fx.optimize(model, (SIZES,), 0, progress=False)
    assert model.training
    answers_alike(fast, model.eval(), torch.randn(SIZES))


def test_weights_changed_after_tuning_are_ignored() -> None:
    model, x = nn.Sequential(Scaled(), nn.Linear(16, 4)), torch.randn(SIZES)
    fast = fx.optimize(model, (x,), 0, progress=False)
    before = fast(x)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor += 1
    torch.testing.assert_close(fast(x), before, rtol=0, atol=0)


def dynamic(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


Pair = namedtuple("Pair", "a b")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        raise RuntimeError("not today")


BAD: dict[str, tuple[Callable[[], Any], Any, type[FelixlikeError], str]] = {
    "nothing": (lambda: None, SIZES, InvalidModel, "None is not a model"),
    "a number": (lambda: 7, SIZES, InvalidModel, "an int is not a model"),
    "a class": (lambda: nn.ReLU, SIZES, InvalidModel, r"ReLU is a class.*ReLU\(…\)"),
    "a function": (lambda: torch.relu, SIZES, InvalidModel, "is not a model"),
    "a list of layers": (lambda: [nn.ReLU()], SIZES, InvalidModel, "a list is not a model"),
    "weights alone": (lambda: nn.Linear(16, 4).state_dict(), SIZES, InvalidModel, "is not a model"),
    "a tensor": (lambda: torch.ones(3), SIZES, InvalidModel, "is not a model"),
    "scripted": (lambda: torch.jit.script(nn.Linear(16, 4)), SIZES, InvalidModel, "ScriptModule|scripted|TorchScript"),
    "traced": (
        lambda: torch.jit.trace(nn.Linear(16, 4), torch.ones(SIZES)),  # type: ignore[no-untyped-call]
        SIZES,
        InvalidModel,
        "ScriptModule|traced|TorchScript",
    ),
    "without shapes": (lambda: nn.Linear(16, 4), None, InvalidShape, "shapes of the model's inputs are not known"),
    "the wrong shape": (lambda: nn.Linear(16, 4), (2, 15), ExportFailed, "."),
    "dynamic": (lambda: module_of(dynamic), SIZES, DynamicControlFlow, "depend"),
    "raising": (Broken, SIZES, ExportFailed, "not today"),
    "an identity": (nn.Identity, SIZES, EmptyModel, "computes nothing"),
    "no tensor": (lambda: module_of(lambda x: 3), SIZES, EmptyModel, "returns no tensor"),
    "sizes by values": (lambda: module_of(lambda x: x[x > 0]), SIZES, FelixlikeError, "."),
    "no size yet": (lambda: nn.LazyLinear(4), SIZES, InvalidModel, "weight has no size yet"),
    "without memory": (lambda: nn.Linear(16, 4, device="meta"), SIZES, InvalidModel, "meta"),
    "complex": (lambda: module_of(lambda x: torch.fft.fft(x)), SIZES, FelixlikeError, "."),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("way", BAD)
def test_invalid_models_are_refused(way: str) -> None:
    make, shapes, kind, words = BAD[way]
    with Refused(kind, words):
        fx.optimize(make(), shapes, 0, progress=False)


def test_a_tuned_model_is_refused(fast: fx.Optimized, x: torch.Tensor) -> None:
    with Refused(InvalidModel, "is not a model"):
        fx.optimize(fast, (x,), 0, progress=False)


def test_a_tuned_part_is_refused(fast: fx.Optimized, x: torch.Tensor) -> None:
    with Refused(UnsupportedOperator, "compiled by felixlike"):
        fx.optimize(nn.Sequential(fast.module(), nn.ReLU()), (x,), 0, progress=False)


FILES: dict[str, tuple[str, type[FelixlikeError], str]] = {
    "missing": ("nowhere.pt2", InvalidModel, "there is no such file"),
    "a folder": ("folder.pt2", InvalidModel, "no such file|directory"),
    "weights": ("weights.pt", InvalidModel, r" \.pt .*\.pt2 .*\.onnx"),
    "without a suffix": ("model", InvalidModel, r"no suffix\b"),
    "empty": ("empty.pt2", InvalidModel, "."),
    "text": ("text.onnx", InvalidModel, "."),
    "a tuned model": ("tuned.flx", InvalidModel, r" \.flx .*\.pt2 .*\.onnx"),
}


@pytest.mark.parametrize("way", FILES)
def test_files_without_a_model_are_refused(way: str, tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    for name in ("weights.pt", "model", "empty.pt2", "tuned.flx"):
        (tmp_path / name).touch()
    (tmp_path / "text.onnx").write_text("hello")
    name, kind, words = FILES[way]
    with Refused(kind, words):
        fx.optimize(tmp_path / name, None, 0, progress=False)


@pytest.mark.parametrize("kind", ["program", "path", "text"])
def test_exported_programs_are_tuned(kind: str, model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "model.pt2")
    source = {"program": program, "path": tmp_path / "model.pt2", "text": str(tmp_path / "model.pt2")}[kind]
    answers_alike(fx.optimize(source, rounds=0, progress=False), model, x)


def test_onnx_models_are_tuned(model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX files need onnx")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["input.1"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("input.1", onnx.TensorProto.FLOAT, [2, 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 16])],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(proto, tmp_path / "model.onnx")
    for source in (proto, tmp_path / "model.onnx"):
        fast = fx.optimize(source, rounds=0, progress=False)
        answers_alike(fast, torch.relu, x)
        torch.testing.assert_close(fast(**{"input.1": x}), torch.relu(x))


class AlwaysDropping(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.dropout(x, 0.5, training=True)


class Dropping(AlwaysDropping):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(torch.tanh(x))


class Scaling(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * (1 + random.random())


@pytest.mark.parametrize("model", [Dropping(), AlwaysDropping()])
def test_random_operators_are_refused(model: nn.Module, x: torch.Tensor) -> None:
    """Random operators are refused, because TVM drops dropout and imports noise as constants."""
    with Refused(RandomOperator, r"\(dropout\)"):
        fx.optimize(model, (x,), 0, progress=False)


def test_randomness_outside_of_torch_warns(x: torch.Tensor) -> None:
    with pytest.warns(NondeterministicModelWarning, match=r"Scaling: .*every call"):
        fx.optimize(Scaling(), (x,), 0, progress=False)
