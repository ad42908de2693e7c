"""Convolutions of few channels and of narrow images where matrices are multiplied: long rows, and many of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from schedules import equal_counts, equal_nests
from torch import nn

from felixlike.codegen.annotations import Matrix
from felixlike.frontend import Task, import_model
from felixlike.hardware import imitated_target, with_precision
from felixlike.runtime import compile_model
from felixlike.symbolic import Sketch, sketches

TILES = with_precision(imitated_target("emerald-rapids", cores=2), "bfloat16")
"""A CPU that multiplies matrices. Code for it runs on any."""

PAIRS = with_precision(imitated_target("zen5", cores=2), "bfloat16")

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], str, tuple[int, ...]]] = {
    "stem": (nn.Conv2d(3, 32, 7, 2, 3), (1, 3, 32, 32), "conv2d", (32, 1, 7, 28)),
    "stem of volumes": (nn.Conv3d(3, 32, 3, (1, 2, 2), 1), (1, 3, 4, 32, 32), "conv3d", (32, 1, 3, 3, 12)),
    "dilated": (nn.Conv2d(4, 32, 3, 1, 2, dilation=2), (1, 4, 32, 32), "conv2d", (32, 4, 3, 3)),
    "one tap": (nn.Conv2d(64, 96, 1), (1, 64, 7, 7), "matmul", (64, 96)),
    "one tap with strides": (nn.Conv2d(64, 96, 1, 2), (1, 64, 14, 14), "matmul", (64, 96)),
    "windows": (nn.Conv2d(32, 96, 3, 1, 1), (8, 32, 7, 7), "matmul", (288, 96)),
    "windows with strides": (nn.Conv2d(32, 96, 3, (2, 1), (1, 0)), (16, 32, 13, 7), "matmul", (288, 96)),
    "windows with holes": (nn.Conv2d(32, 96, 3, 1, 2, dilation=2), (8, 32, 7, 7), "matmul", (288, 96)),
    "few windows": (nn.Conv2d(32, 96, 3, 1, 1), (1, 32, 7, 7), "conv2d", (96, 32, 3, 3)),
    "wide lines": (nn.Conv2d(32, 96, 1), (1, 32, 14, 14), "conv2d", (96, 32, 1, 1)),
}
"""A layer, its input, and the name and the shape of the weights of the kernel that computes it."""


def _model(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer, shape = copy.deepcopy(LAYERS[name][0]), LAYERS[name][1]
    kind = type(layer)
    channels = shape[1]
    before: Any = nn.Identity() if channels == 3 else kind(channels, channels, 1)
    return nn.Sequential(before, nn.ReLU(), layer, nn.ReLU()).eval(), torch.randn(shape)


def _task(model: nn.Module, x: torch.Tensor, name: str) -> tuple[Any, Task]:
    """Return the imported model, and the task of its layer."""
    imported = import_model(model, (x,), TILES)
    _, _, kernel, weights = LAYERS[name]
    tasks = [
        t for t in imported.tasks
        if kernel in t.name and tuple(int(n) for n in t.module["main"].params[1].shape) == weights
    ]  # fmt: skip
    assert len(tasks) == 1
    return imported, tasks[0]


def _sketch(task: Task) -> Sketch:
    (sketch,) = [s for s in sketches(task, space="own") if s.precision == "bfloat16"]
    return sketch


@pytest.mark.parametrize("name", LAYERS)
def test_layers_match_pytorch(name: str) -> None:
    """Factors are rounded, and sums are float32."""
    model, x = _model(name)
    imported, task = _task(model, x, name)
    sketch = _sketch(task)
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.dim() > 1):
            weight.copy_(weight.bfloat16())
        first = model[1](model[0](x.bfloat16().float())).bfloat16()  # type: ignore[index]
        want = model[2:].double()(first.double())  # type: ignore[index]
    for point in sketch.sample(2, seed=0).tolist():
        got = compile_model(imported, {task.key: sketch.schedule(point).mod})(x)
        assert (got.double() - want).abs().max() <= 1e-2 * want.abs().max()


@pytest.mark.parametrize("name", ["stem", "stem of volumes", "one tap", "windows"])
def test_programs_and_formulas_are_exact(name: str) -> None:
    sketch = _sketch(_task(*_model(name), name)[1])
    assert Matrix.key in sketch.trace_json()
    points = sketch.sample(2, seed=3)
    assert equal_counts(sketch, points) > 0
    equal_nests(sketch, points)


@pytest.mark.parametrize("name", LAYERS)
def test_pairs_need_neither(name: str) -> None:
    tasks = import_model(*_model(name), PAIRS).tasks
    assert not any("matmul" in task.name or "windows" in task.name for task in tasks)


def test_infinities_stay_where_they_are() -> None:
    """Windows that do not contain them are finite: what fills rows is zeros in both factors."""
    model, x = _model("stem")
    x[0, 1, 5, 9], x[0, 2, 20, 21] = torch.inf, torch.nan
    imported, task = _task(model, x, "stem")
    sketch = _sketch(task)
    got = compile_model(imported, {task.key: sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod})(x)
    with torch.no_grad():
        want = model(x)
    assert torch.equal(got.isfinite(), want.isfinite())
    assert torch.equal(got.isnan(), want.isnan())


def test_tiles_have_several_lines_of_narrow_images() -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 1, 1)).eval()
    tasks = import_model(model, (torch.randn(1, 32, 12, 12),), TILES).tasks
    (task,) = [t for t in tasks if tuple(int(n) for n in t.module["main"].params[1].shape) == (64, 32, 3, 3)]
    lines = [v for v in _sketch(task).variables if v.extent == 12]
    assert lines[-1].choices == (1, 2, 3, 4)


@pytest.mark.parametrize(("outputs", "columns"), [(24, 14), (32, 17)])
def test_convolutions_that_fill_no_matrices_are_not_rounded(outputs: int, columns: int) -> None:
    """Vectors lie within the channels, and a matrix's rows divide a line's pixels."""
    model = nn.Sequential(nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, outputs, 7, 1, 3)).eval()
    x = torch.randn(1, 32, 14, columns)
    for target, dtype in ((TILES, "float32"), (PAIRS, "bfloat16")):
        weights = [t.module["main"].params[1] for t in import_model(model, (x,), target).tasks if "conv" in t.name]
        assert [str(w.dtype) for w in weights if [int(n) for n in w.shape][2:] == [7, 7]] == [dtype]
