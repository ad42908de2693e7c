"""Tasks name the layers of the user's model that they compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.frontend.rewrites.layers import layers_text


class Block(nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)  # type: ignore[no-any-return]


class Net(nn.Module):
    """A stem, two blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.pool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Block(16), Block(16))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer1(self.pool(functional.relu(self.stem(x)))).mean((2, 3)))  # type: ignore[no-any-return]


def layers(model: nn.Module, *shapes: tuple[int, ...]) -> set[tuple[str, ...]]:
    """Return the layers of each task."""
    return {task.layers for task in import_model(model.eval(), shapes).tasks}


def test_convolutions_with_folded_batch_norms_name_both() -> None:
    assert layers(Net(), (1, 3, 34, 34)) >= {
        ("layer1.0.conv1 + bn1 + relu", "layer1.1.conv1 + bn1 + relu"),
        ("layer1.0.conv2 + bn2 + add + relu", "layer1.1.conv2 + bn2 + add + relu"),
        ("stem + relu",),
        ("pool",),
        ("mean",),
        ("fc",),
    }


def test_kernels_of_one_fast_convolution_name_it() -> None:
    found = import_model(Block(64).eval(), ((1, 64, 28, 28),))
    products = [task for task in found.tasks if "fast_product" in task.name]
    assert [task.layers for task in products] == [("conv1 + bn1", "conv2 + bn2")]
    assert products[0].title == "conv1 + bn1 (and 1 other)"


def test_parts_of_a_module_are_told_apart_by_operators() -> None:
    found = layers(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (1, 32, 64))
    assert found >= {
        ("self_attn.linear",),
        ("self_attn.scaled_dot_product_attention + permute",),
        ("linear1 + relu",),
        ("linear2 + add",),
        ("norm1", "norm2"),
    }


class Functional(nn.Module):
    """Two convolutions with batch norms, all as functions of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 1, 1))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("variance", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = functional.conv2d(x, self.weight)
            x = functional.batch_norm(x, self.mean, self.variance)  # type: ignore[arg-type]
        return functional.conv2d(x, self.weight)


def test_functions_are_named_by_their_operators() -> None:
    assert layers(Functional(), (1, 16, 14, 14)) == {("conv2d + batch_norm", "conv2d + batch_norm"), ("conv2d",)}


class Renamed(nn.Module):
    """The network under other names."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def test_labels_change_neither_keys_nor_functions() -> None:
    net = Net().eval()
    plain, renamed = (import_model(model.eval(), ((1, 3, 34, 34),)) for model in (net, Renamed(net)))
    assert [(t.key, t.name, t.weight) for t in plain.tasks] == [(t.key, t.name, t.weight) for t in renamed.tasks]
    assert [t.layers for t in plain.tasks] != [t.layers for t in renamed.tasks]
    assert "inner" not in renamed.module.script()
    for task, other in zip(plain.tasks, renamed.tasks, strict=True):
        assert _tvm.ir.save_json(task.module) == _tvm.ir.save_json(other.module)


def test_models_without_names_have_none() -> None:
    relax = _tvm.relax
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(result)
    (task,) = import_model(builder.get()).tasks
    assert task.layers == ()
    assert task.title == task.name


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([], ""),
        (["fc"], "fc"),
        (["linear1", "relu"], "linear1 + relu"),
        (["a.0.conv1", "a.0.bn1", "a.0.add"], "a.0.conv1 + bn1 + add"),
        (["a.0.layer.conv", "a.0.add", "a.0.cut.conv"], "a.0.layer.conv + add + cut.conv"),
        (["h.0.mlp", "h.1.norm"], "h.0.mlp + h.1.norm"),
        (["attn.q", "attn"], "attn.q + attn"),
    ],
)
def test_later_labels_omit_what_they_share_with_the_first(labels: list[str], text: str) -> None:
    assert layers_text(labels) == text
