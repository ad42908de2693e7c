"""Models in bfloat16: products read bfloat16, weights stay so, and roundings do not separate fused operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn
from torch.nn import functional

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.hardware import described_target, imitated_target, with_precision
from felixlike.runtime import compile_model
from felixlike.symbolic import sketches

ZEN3, ZEN5 = described_target("zen3", cores=2), imitated_target("zen5", cores=2)
"""CPUs without and with products of pairs. Code for the second runs on any."""


class _Layer(nn.Module):
    """A layer of a transformer, with attention and a perceptron."""

    def __init__(self, width: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 256), nn.Linear(256, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = [part(x).view(batch, length, self.heads, -1).transpose(1, 2) for part in self.parts[:3]]
        y = functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width)
        x = self.norm(x + self.parts[3](y))
        return torch.add(x, self.narrow(functional.gelu(self.wide(x))))


def _convolutions() -> nn.Module:
    norm = nn.BatchNorm2d(32)
    norm.running_mean, norm.running_var = torch.randn(32), torch.rand(32) + 0.5
    strided = nn.Conv2d(32, 32, 3, 2, 1)
    return nn.Sequential(nn.Conv2d(4, 32, 1), norm, nn.ReLU(), strided, nn.ReLU(), nn.AdaptiveAvgPool2d(1))


def _groups() -> nn.Module:
    norm = nn.BatchNorm2d(32)
    norm.running_mean, norm.running_var = torch.randn(32), torch.rand(32) + 0.5
    grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4, bias=False)
    return nn.Sequential(nn.Conv2d(4, 32, 1), nn.ReLU(), grouped, norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1))


class _Residual(nn.Module):
    """A block whose input two operators read, with the zeros around it that MobileNets of `transformers` have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.narrow = nn.Conv2d(4, 32, 1), nn.Conv2d(32, 64, 1), nn.Conv2d(64, 32, 1)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        y: torch.Tensor = self.narrow(self.wide(functional.pad(x, (0, 0, 0, 0))).relu())
        return x + y


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48)), (19, 32)),
    "layer": (_Layer, (1, 32, 64)),
    "convolutions": (_convolutions, (1, 4, 12, 12)),
    "groups": (_groups, (1, 4, 12, 12)),
    "residual": (_Residual, (1, 4, 12, 12)),
    "batch": (lambda: Apply(lambda x: torch.relu(x @ (x * 2).mT)), (3, 16, 24)),
}


def _model(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().eval().bfloat16(), torch.randn(shape).bfloat16()


def _constants(module: Any) -> list[Any]:
    """Return the constants with two dimensions or more that kernels of a Relax module take."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.ir.GenericConst) and sum(int(n) > 1 for n in node.value.shape) > 1:
            found.append(node.value)

    _tvm.relax.analysis.post_order_visit(module["main"], visit)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_weights_stay_bfloat16_and_no_kernel_only_converts(name: str) -> None:
    model, x = _model(name)
    imported = import_model(model, (x,), ZEN5)
    assert {str(weight.dtype) for weight in _constants(imported.module)} <= {"bfloat16"}
    products = [task for task in imported.tasks if task.flops > 1e4 and "attention" not in task.name]
    assert products
    for task in products:
        if "matmul" in task.name or "conv" in task.name:
            assert str(task.module["main"].params[0].dtype) == "bfloat16"
    assert not any(task.name.startswith("cast") for task in imported.tasks)


@pytest.mark.parametrize("name", MODELS)
def test_products_are_computed_in_pairs_unasked(name: str) -> None:
    model, x = _model(name)
    tasks = {task.name: task for task in import_model(model, (x,), ZEN5).tasks}
    of = {n: {s.precision for s in sketches(t, space="own")} for n, t in tasks.items() if "matmul" in n or "conv" in n}
    assert of
    assert set().union(*of.values()) == {"bfloat16"}


@pytest.mark.parametrize("target", [ZEN3, ZEN5], ids=["zen3", "zen5"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_at_most_as_far_off_as_pytorchs(name: str, target: Any) -> None:
    model, x = _model(name)
    got = compile_model(import_model(model, (x,), target))(x)
    with torch.no_grad():
        want = model(x)
        exact = model.double()(x.double())
    assert got.dtype == want.dtype == torch.bfloat16
    ours, eager = ((answer.double() - exact).abs().max() for answer in (got, want))
    assert ours <= eager + 2.0**-8 * exact.abs().max()


def test_layers_have_the_kernels_of_float32() -> None:
    """Roundings between operators hide neither attention nor projections of one input."""
    model, x = _model("layer")
    halves = import_model(model, (x,), ZEN5).tasks
    singles = import_model(model.float(), (x.float(),), ZEN5).tasks
    assert sum("matmul" in task.name for task in halves) == sum("matmul" in task.name for task in singles)
    assert any("attention" in task.name for task in halves)


def test_schedules_compute_the_products_of_the_model() -> None:
    model, x = _model("perceptron")
    imported = import_model(model, (x,), ZEN5)
    schedules = {}
    for task in imported.tasks:
        (sketch,) = sketches(task, space="own")
        schedules[task.key] = sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod
    got = compile_model(imported, schedules)(x)
    want = model.double()(x.double())
    assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max()


def test_a_models_own_roundings_stay() -> None:
    (task,) = import_model(Apply(lambda x: x.bfloat16().float() + 1), (torch.randn(5, 7),)).tasks
    assert task.name == "fused_cast_cast1_add"


@pytest.mark.parametrize("view", [False, True])
def test_a_models_own_roundings_stay_before_convolutions(view: bool) -> None:
    """Those of a model in bfloat16 do not: depthwise convolutions multiply no pairs."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(8, 8, 3, groups=8).bfloat16().float()
    rounds = Apply(lambda x: (x.bfloat16().reshape(1, 8, 6, 6) if view else x.bfloat16()).float())
    model = nn.Sequential(rounds, convolution, nn.BatchNorm2d(8)).eval()
    x = torch.randn((8, 6, 6) if view else (1, 8, 6, 6))
    with torch.no_grad():
        torch.testing.assert_close(compile_model(import_model(model, (x,), ZEN5))(x), model(x), rtol=1e-5, atol=1e-5)


def test_float32_products_of_exact_weights_are_not_pairs() -> None:
    """Only the weights are bfloat16 here, so the other factor would be rounded."""
    model = nn.Linear(64, 64)
    with torch.no_grad():
        model.weight.copy_(model.weight.bfloat16())
    (task,) = import_model(model, (torch.randn(32, 64),), ZEN5).tasks
    assert {sketch.precision for sketch in sketches(task, space="own")} == {"float32"}


def test_infinities_and_nan_are_pytorchs() -> None:
    model, x = _model("perceptron")
    layer = next(model.children())
    x[0, 1], x[1, 2], x[2, 3], x[3, 4] = torch.nan, torch.inf, -torch.inf, 3.3e38
    with torch.no_grad():
        want = layer(x)
    imported = import_model(layer, (x,), ZEN5)
    (task,) = imported.tasks
    (sketch,) = sketches(task, space="own")
    got = compile_model(imported, {task.key: sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod})(x)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())
    assert want.isnan()[0].all()
    assert want.isinf()[1:3].all()


def test_float64_models_stay_float64() -> None:
    """They are neither rounded unasked nor with `precision`."""
    model, x = nn.Linear(64, 64).double(), torch.randn(64, 64).double()
    for target in (ZEN5, with_precision(ZEN5, "bfloat16")):
        (task,) = import_model(model, (x,), target).tasks
        assert {sketch.precision for sketch in sketches(task, space="own")} == {"float32"}
        assert {str(buffer.dtype) for buffer in task.module["main"].params} == {"float64"}


def test_autocast_in_a_model_multiplies_pairs() -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y: torch.Tensor = self.layer(x)
            return y

    model, x = Autocast().eval(), torch.randn(48, 64)
    imported = import_model(model, (x,), ZEN5)
    products = [task for task in imported.tasks if "matmul" in task.name]
    assert {sketch.precision for task in products for sketch in sketches(task, space="own")} == {"bfloat16"}
    got = compile_model(imported)(x)
    with torch.no_grad():
        want = model(x)
    assert got.dtype == want.dtype == torch.bfloat16
    assert (got - want).abs().max() <= 2.0**-7 * want.abs().max()


class _Depthwise(nn.Module):
    """Depthwise convolutions between plain ones, with the zeros around them that TensorFlow's padding has."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(32)
        norm.running_mean, norm.running_var = torch.randn(32), torch.rand(32) + 0.5
        self.first, self.last = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1)
        self.depthwise = nn.Sequential(nn.Conv2d(32, 32, 3, 2, groups=32, bias=False), norm, nn.ReLU6())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.depthwise(functional.pad(self.first(x).relu(), (0, 1, 0, 1))))
        return y


def test_depthwise_convolutions_have_the_kernels_of_float32() -> None:
    """Their input is neither rounded nor padded by other kernels, and their batch norm is in their weights."""
    torch.manual_seed(0)
    model, x = _Depthwise().eval(), torch.randn(1, 16, 12, 12)
    model, x = model.bfloat16(), x.bfloat16()
    names = {t.name for t in import_model(model, (x,), ZEN5).tasks}
    assert "fused_conv2d_add_relu" in names
    assert any(name.startswith("fused_conv2d1_add1_tir_clip") for name in names)
    assert not any("pad" in name or "multiply" in name for name in names)
    got = compile_model(import_model(model, (x,), ZEN5))(x)
    with torch.no_grad():
        want = model(x)
        exact = model.double()(x.double())
    ours, eager = ((answer.double() - exact).abs().max() for answer in (got, want))
    assert ours <= eager + 2.0**-8 * exact.abs().max()


def test_transformed_convolutions_read_what_is_not_rounded() -> None:
    """Their products are float32. What several operators read is rounded once, for all of them."""
    model = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1) for _ in range(2))).eval().bfloat16()
    x = torch.randn(1, 128, 28, 28).bfloat16()
    names = [task.name for task in import_model(model, (x,), ZEN5).tasks if "output" in task.name]
    assert sorted(names) == ["fused_conv2d_fast_output_add", "fused_conv2d_fast_output_add_cast1"]


@pytest.mark.parametrize("pad", [functional.pad, torch.constant_pad_nd])
def test_numbers_that_pads_write_are_rounded(pad: Any) -> None:
    """Pads with zeros only move elements; others do arithmetic, as 0.1 is no bfloat16."""
    model, x = Apply(lambda x: pad(x.relu(), (1, 2), value=0.1) * 2), torch.randn(3, 5).bfloat16()
    assert torch.equal(compile_model(import_model(model, (x,)))(x), model(x))
