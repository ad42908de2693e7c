"""Tensors between kernels in bfloat16: where products round them, and nowhere else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn
from torch.nn import functional

from felixlike.frontend import import_model
from felixlike.hardware import described_target, imitated_target, with_precision
from felixlike.runtime import compile_model

ZEN5 = imitated_target("zen5", cores=2)
"""A CPU with products of pairs. Code for it runs on any."""

ROUNDED = with_precision(ZEN5, "bfloat16")


class _Residual(nn.Module):
    """A block whose input a convolution and an addition read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.narrow = nn.Conv2d(4, 32, 1), nn.Conv2d(32, 64, 3, 1, 1), nn.Conv2d(64, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        y: torch.Tensor = x + self.narrow(self.wide(x).relu())
        return y


class _Residues(nn.Module):
    """A block whose input a product and an addition read, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        y: torch.Tensor = x + self.narrow(self.wide(x).relu())
        return y


class _Joined(nn.Module):
    """Two tensors that a convolution reads as one, and one of which a pooling reads, too, for an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 32, 1), nn.Conv2d(64, 32, 1)
        self.left, self.right = nn.Conv2d(32, 32, 3, 1, 1), nn.Conv2d(32, 32, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x).relu()
        left, right = self.left(x).relu(), self.right(x).sigmoid()
        return self.last(torch.cat([left, right], 1)), functional.max_pool2d(right, 2)


class _Normed(nn.Module):
    """A tensor that a product and a norm read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(32, 64), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        y: torch.Tensor = self.last(x) + self.norm(x)
        return y


def _both() -> nn.Module:
    class Both(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x.relu()), x.relu()

    return Both(32, 48)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48))


def _with_views() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.Unflatten(1, (8, 8)), nn.Flatten(), nn.Linear(64, 48))


def _convolutions(*around: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 32, 1), nn.ReLU(), *around, nn.ReLU(), nn.Conv2d(32, 32, 1))


def _separable() -> nn.Module:
    return _convolutions(nn.Conv2d(32, 32, 3, 2, 1, groups=32))


def _transposed() -> nn.Module:
    return _convolutions(nn.ConvTranspose2d(32, 32, 2, 2))


def _overlapping() -> nn.Module:
    return _convolutions(nn.ConvTranspose2d(32, 32, 4, 2, 1))


def _transposed_groups() -> nn.Module:
    return _convolutions(nn.ConvTranspose2d(32, 32, 2, 2, groups=2))


IMAGE = (1, 4, 12, 12)

MODELS: dict[str, tuple[Any, tuple[int, ...], set[str]]] = {
    "perceptron": (_perceptron, (19, 32), {"fused_matmul_add_gelu"}),
    "views": (_with_views, (19, 32), {"fused_matmul_add"}),
    "residual": (_Residual, IMAGE, {"fused_conv2d_add_relu", "fused_conv2d1_add1_relu1"}),
    "residual of products": (_Residues, (19, 32), {"fused_matmul1_add1_relu1"}),
    "joined": (
        _Joined,
        IMAGE,
        {"fused_conv2d_add_relu", "fused_conv2d1_add_relu", "fused_conv2d1_add_tir_sigmoid", "concatenate"},
    ),
    "separable": (_separable, IMAGE, {"fused_conv2d1_add_relu", "fused_conv2d_add1_relu1"}),
    "transposed": (_transposed, IMAGE, {"fused_conv2d_add_relu", "fused_conv2d_transpose_add1_relu1"}),
    "overlapping": (_overlapping, IMAGE, {"fused_conv2d_add_relu", "fused_conv2d_transpose_add1_relu1"}),
    "transposed groups": (_transposed_groups, IMAGE, {"fused_conv2d_transpose_add1_relu1"}),
    "norm": (_Normed, (19, 32), set()),
    "output": (_both, (19, 32), set()),
    "few rows": (_perceptron, (3, 32), set()),
}
"""A model, its input, and the kernels that write bfloat16."""


def _model(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    make, shape, _ = MODELS[name]
    return make().eval(), torch.randn(shape)


def _writers(model: nn.Module, x: torch.Tensor, target: Any, **options: Any) -> list[str]:
    """Return the names of the tasks that write bfloat16."""
    tasks = import_model(model, (x,), target, **options).tasks
    return sorted(t.name for t in tasks if str(t.module["main"].params[-1].dtype) == "bfloat16")


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_written_in_bfloat16_where_products_round_them(name: str) -> None:
    assert {re.sub(r"_cast\d*$", "", n) for n in _writers(*_model(name), ROUNDED)} == MODELS[name][2]


@pytest.mark.parametrize("name", ["perceptron", "residual"])
@pytest.mark.parametrize("target", [ZEN5, with_precision(described_target("zen3", cores=2), "bfloat16")])
def test_tensors_stay_float32_without_a_precision_or_an_instruction(name: str, target: Any) -> None:
    assert not _writers(*_model(name), target)


def test_tensors_stay_float32_if_asked() -> None:
    assert not _writers(*_model("residual"), ROUNDED, wide_tensors=True)


def test_weights_that_become_infinite_stay_float32() -> None:
    model, x = _model("perceptron")
    with torch.no_grad():
        model[2].weight[0, 0] = 3.4e38  # type: ignore[index]
    assert not _writers(model, x, ROUNDED)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_near(name: str) -> None:
    model, x = _model(name)
    got = compile_model(import_model(model, (x,), ROUNDED))(x)
    with torch.no_grad():
        want = model.double()(x.double())
    for ours, exact in zip(*((out,) if torch.is_tensor(out) else out for out in (got, want)), strict=True):
        assert ours.dtype == torch.float32
        assert (ours.double() - exact).abs().max() <= 1e-2 * exact.abs().max()


def test_infinities_and_nan_are_those_of_rounded_factors() -> None:
    model, x = _model("residual")
    x[0, 0, 0, 0], x[0, 1, 2, 2], x[0, 2, 4, 4] = torch.nan, torch.inf, 3.3e38
    got = compile_model(import_model(model, (x,), ROUNDED))(x)
    with torch.no_grad():
        want = model.bfloat16()(x.bfloat16())
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())


def test_each_kernel_converts_what_it_reads() -> None:
    """No kernel only converts a bfloat16 tensor that several others read."""
    model = Apply(lambda x, y: ((x * 2).float().exp() @ y, (x * 2).float().sin() @ y))
    names = [t.name for t in import_model(model, (torch.randn(64, 64).bfloat16(), torch.randn(64, 64)), ZEN5).tasks]
    assert not any(name.startswith("cast") for name in names)


POOLS = {
    "images": (nn.MaxPool2d((3, 2), 2, 1, ceil_mode=True), (2, 8, 11, 10)),
    "volumes": (nn.MaxPool3d(2, 2, dilation=2), (1, 4, 7, 8, 9)),
}


@pytest.mark.parametrize("name", POOLS)
def test_maxima_of_windows_read_bfloat16(name: str) -> None:
    torch.manual_seed(0)
    pool, shape = POOLS[name]
    x = torch.randn(shape).bfloat16()
    x[0, 1], x[0, 2, 0] = -torch.inf, torch.nan
    imported = import_model(pool, (x,), ZEN5)
    assert len(imported.tasks) == 1
    assert torch.allclose(compile_model(imported)(x), pool(x), rtol=0, atol=0, equal_nan=True)
