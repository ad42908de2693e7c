"""Tests for input channels in even numbers: convolutions get pairs, outputs and their NaN stay those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.hardware import described_target, imitated_target, with_precision
from felixlike.runtime import compile_model
from felixlike.symbolic import sketches

ZEN3, ZEN5 = described_target("zen3", cores=2), imitated_target("zen5", cores=2)
"""CPUs without and with products of pairs. Code for the second runs on any."""

FIRST: dict[str, tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = {
    "stem": (nn.Conv2d(3, 32, 7, 2, 3), (1, 3, 32, 32), (32, 4, 7, 7)),
    "patches": (nn.Conv2d(3, 128, 8, 8), (1, 3, 32, 32), (128, 24, 8, 1)),
    "patches that overlap": (nn.Conv2d(3, 128, 8, 4, 4), (2, 3, 32, 40), (128, 12, 8, 2)),
    "columns that are left over": (nn.Conv2d(3, 512, 8, 8), (1, 3, 32, 35), (512, 4, 8, 8)),
    "odd stride": (nn.Conv2d(3, 256, 7, 7), (1, 3, 35, 35), (256, 4, 7, 7)),
    "one dimension": (nn.Conv1d(15, 256, 8, 8), (1, 15, 128), (256, 120, 1)),
    "three dimensions": (nn.Conv3d(3, 256, (2, 4, 4), (2, 4, 4)), (1, 3, 4, 16, 16), (256, 12, 2, 4, 1)),
    "groups": (nn.Conv2d(64, 128, 3, padding=1, groups=4), (1, 64, 14, 14), (128, 16, 3, 3)),
}
"""The first layer of a network, its input, and the shape of the weights that its kernel takes."""


def _model(name: str, *, halves: bool) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    first, shape, _ = FIRST[name]
    dtype = torch.bfloat16 if halves else torch.float32
    return nn.Sequential(first, nn.ReLU()).eval().to(dtype), torch.randn(shape).to(dtype)


def _convolution(model: nn.Module, x: torch.Tensor, target: Any) -> Any:
    tasks = [t for t in import_model(model, (x,), target).tasks if "conv" in t.name]
    assert len(tasks) == 1
    return tasks[0]


@pytest.mark.parametrize("halves", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FIRST)
def test_products_are_computed_in_pairs(name: str, halves: bool) -> None:
    model, x = _model(name, halves=halves)
    target = ZEN5 if halves else with_precision(ZEN5, "bfloat16")
    task = _convolution(model, x, target)
    assert tuple(int(n) for n in task.module["main"].params[1].shape) == FIRST[name][2]
    padded = FIRST[name][2][1] == 4
    rounded = halves or padded  # the tensor with a channel of zeros is written in bfloat16
    assert {s.precision for s in sketches(task, space="own")} == ({"bfloat16"} if rounded else {"bfloat16", "float32"})


@pytest.mark.parametrize(
    ("name", "halves"), [*((name, False) for name in FIRST), ("stem", True), ("columns that are left over", True)]
)
def test_schedules_in_pairs_match_pytorch(name: str, halves: bool) -> None:
    """Their factors are those that PyTorch rounds, and their sums are float32."""
    model, x = _model(name, halves=halves)
    imported = import_model(model, (x,), ZEN5 if halves else with_precision(ZEN5, "bfloat16"))
    schedules = {}
    for task in imported.tasks:
        for sketch in sketches(task, space="own"):
            if sketch.precision == "bfloat16":
                schedules[task.key] = sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod
    assert len(schedules) == 1
    got = compile_model(imported, schedules)(x)
    with torch.no_grad():
        weight = next(model.parameters())
        weight.copy_(weight.bfloat16())
        want = model.double()(x.bfloat16().double())
    assert (got.double() - want).abs().max() <= (4e-3 if halves else 1e-5) * want.abs().max()


@pytest.mark.parametrize("name", ["stem", "patches that overlap", "columns that are left over", "groups"])
def test_infinities_stay_where_they_are(name: str) -> None:
    """Weights of zero meet zeros alone, or a product with an infinity would be NaN."""
    model, x = _model(name, halves=True)
    x[0, 0, ..., 9] = torch.inf
    with torch.no_grad():
        want = model(x)
    got = compile_model(import_model(model, (x,), ZEN5))(x)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    assert want.isfinite().any()


@pytest.mark.parametrize(
    ("model", "shape", "target"),
    [
        (nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 64, 64), ZEN5),
        (nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 64, 64), with_precision(ZEN3, "bfloat16")),
        (nn.Conv2d(1, 64, 5), (1, 1, 64, 64), with_precision(ZEN5, "bfloat16")),
        (nn.Conv2d(3, 3, 3, groups=3), (1, 3, 64, 64), with_precision(ZEN5, "bfloat16")),
        (nn.Conv2d(12, 64, 3, groups=4), (1, 12, 64, 64), with_precision(ZEN5, "bfloat16")),
        (nn.Conv2d(3, 4, 3), (1, 3, 64, 64), with_precision(ZEN5, "bfloat16")),
        (nn.Conv2d(3, 64, 7, 2, 3).double(), (1, 3, 64, 64), with_precision(ZEN5, "bfloat16")),
    ],
    ids=[
        *("float32", "no pairs", "half of the channels would be zeros", "depthwise", "odd groups", "few outputs"),
        "float64",
    ],
)
def test_channels_stay_where_pairs_gain_nothing(model: nn.Module, shape: tuple[int, ...], target: Any) -> None:
    x = torch.zeros(shape, dtype=next(model.parameters()).dtype)
    task = _convolution(model.eval(), x, target)
    weights = [tuple(int(n) for n in buffer.shape) for buffer in task.module["main"].params]
    assert tuple(next(model.parameters()).shape) in weights


def _in_order(model: nn.Module, order: torch.memory_format) -> nn.Module:
    """Return a model whose weights are in a memory format. PyTorch's types of `nn.Module.to` have none."""
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=order)
    return model


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("halves", [False, True], ids=["float32", "bfloat16"])
def test_a_convolution_alone_has_pairs_where_they_save_more_than_permutations_take(last: bool, halves: bool) -> None:
    order = torch.channels_last if last else torch.contiguous_format
    dtype = torch.bfloat16 if halves else torch.float32
    target = ZEN5 if halves else with_precision(ZEN5, "bfloat16")
    model = _in_order(nn.Conv2d(32, 64, 3, 2, 1).eval().to(dtype), order)
    x = torch.randn(1, 32, 28, 28).to(dtype=dtype, memory_format=order)
    task = _convolution(model, x, target)
    assert "bfloat16" in {s.precision for s in sketches(task, space="own")}
    small = nn.Conv2d(2, 4, 1).eval().to(dtype)
    task = _convolution(small, torch.zeros(1, 2, 28, 28, dtype=dtype), target)
    assert {s.precision for s in sketches(task, space="own")} == {"float32"}
    narrow = nn.Conv2d(96, 96, 3, padding=1, groups=4).eval().to(dtype)  # 24 channels fill vectors of 8
    task = _convolution(narrow, torch.zeros(1, 96, 28, 28, dtype=dtype), target)
    assert {s.precision for s in sketches(task, space="own")} == {"float32"}


def test_pads_with_other_numbers_than_zero_are_no_bfloat16() -> None:
    """0.1 is not in bfloat16, so products that read it must not be rounded unasked."""
    from felixlike.frontend.rewrites.half_values import is_half
    from felixlike.frontend.rewrites.rewriting import Bindings

    op = _tvm.relax.op
    for value, expected in ((0.0, True), (0.1, False)):
        builder, x = _tvm.relax.BlockBuilder(), _tvm.relax.Var("x", _tvm.relax.TensorType((2, 3), "bfloat16"))
        with builder.function("main", [x]):
            with builder.dataflow():
                wide = builder.emit(op.astype(x, "float32"))
                padded = builder.emit_output(op.nn.pad(wide, [0, 0, 0, 1], pad_value=value))
            builder.emit_func_output(padded)
        assert is_half(padded, Bindings(builder.get()["main"])) == expected
