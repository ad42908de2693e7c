"""Stages around a contraction: epilogues that run in the order of the contraction, and epilogues that cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import oracles
from torch import nn

from felixlike import _tvm
from felixlike.frontend import Imported, import_model, make_task
from felixlike.hardware import resolve_target
from felixlike.runtime import compile_model, max_relative_error
from felixlike.symbolic import Sketch, concrete_nest, sketches

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "two_dimensions": (nn.ConvTranspose2d(8, 32, 4, stride=2, padding=1), (1, 8, 4, 4)),
    "three_phases": (nn.ConvTranspose2d(8, 16, 5, stride=3, padding=1), (1, 8, 4, 4)),
    "groups": (nn.ConvTranspose2d(8, 32, 4, stride=2, padding=1, groups=2), (1, 8, 4, 4)),
    "groups_and_columns": (nn.ConvTranspose2d(4, 8, 4, stride=2, padding=1, groups=2), (1, 4, 16, 16)),
    "one_dimension": (nn.ConvTranspose1d(8, 16, 8, stride=4, padding=2), (1, 8, 7)),
}


def imported(layer: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, torch.Tensor, Imported]:
    model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(shape)
    return model, x, import_model(model, (x,))


def own_sketch(task: Any) -> Sketch:
    (sketch,) = sketches(task, space="own")
    return sketch


@pytest.mark.parametrize("name", LAYERS)
def test_interleaving_epilogues_run_in_the_order_of_the_phases(name: str) -> None:
    """Tiles of transposed convolutions over phases are correct, and their programs equal TVM's."""
    model, x, source = imported(*LAYERS[name])
    (task,) = source.tasks
    sketch = own_sketch(task)
    assert sketch.is_symbolic, sketch.reason
    for point in sketch.sample(3, seed=2).tolist():
        schedule = sketch.schedule(point)
        values = dict(zip([v.name for v in sketch.variables], point, strict=True))
        assert concrete_nest(sketch.program, values) == oracles.tvm_nest(schedule)
        compiled = compile_model(source, {task.key: schedule})
        assert max_relative_error(compiled, model, (x,)).error < 1e-5


def test_cropped_phases_are_declined() -> None:
    """Only 7 × 7 of 8 × 8 interleaved elements are used, so TVM would write elements that are not computed yet."""
    _, _, source = imported(nn.ConvTranspose2d(8, 32, 3, stride=2, padding=1), (1, 8, 4, 4))
    (task,) = source.tasks
    assert sketches(task, space="own") == ()


def test_the_window_axis_has_no_tile_of_phases() -> None:
    """Each phase has its own weights, so phases share no elements although they move the window."""
    sketch = own_sketch(imported(*LAYERS["one_dimension"])[2].tasks[0])
    assert not any(variable.name.startswith("i0") for variable in sketch.variables)


class Squared(nn.Module):
    """Computes x · x + |x|, which uses x three times and calls no function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x + x.abs()


class WrittenOutMish(nn.Module):
    """Computes three elementary functions one after another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(nn.functional.softplus(x))


ACTIVATIONS = {
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "hardswish": nn.Hardswish(),
    "mish": nn.Mish(),
    "written-out mish": WrittenOutMish(),
    "squared": Squared(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_activations_that_reuse_their_input_are_one_epilogue(name: str, kind: str) -> None:
    layer: nn.Module = nn.Linear(24, 16) if kind == "linear" else nn.Conv2d(6, 16, 3, padding=1)
    x = torch.randn(4, 24) if kind == "linear" else torch.randn(1, 6, 16, 16)
    model = nn.Sequential(layer, ACTIVATIONS[name]).eval()
    source = import_model(model, (x,))
    (task,) = source.tasks
    sketch = own_sketch(task)
    assert sketch.is_symbolic, sketch.reason
    (point,) = sketch.sample(1, seed=1).tolist()
    schedule = sketch.schedule(point)
    values = dict(zip([v.name for v in sketch.variables], point, strict=True))
    assert concrete_nest(sketch.program, values) == oracles.tvm_nest(schedule)
    assert max_relative_error(compile_model(source, {task.key: schedule}), model, (x,)).error < 1e-5


def test_two_outputs_are_declined() -> None:
    te = _tvm.te
    a, b = te.placeholder((16, 24), name="A"), te.placeholder((24, 32), name="B")
    product = _tvm.topi.nn.matmul(a, b)
    func = te.create_prim_func([a, b, _tvm.topi.nn.relu(product), _tvm.topi.negative(product)])
    assert sketches(make_task(func, resolve_target("cpu"), name="two"), space="own") == ()


def test_operands_with_equal_names_are_padded_separately() -> None:
    """Parameters of a fused function may have equal names, and blocks that pad them are looked up by name."""
    te = _tvm.te
    a, b = te.placeholder((53, 24), name="lv"), te.placeholder((24, 40), name="lv")
    task = make_task(te.create_prim_func([a, b, _tvm.topi.nn.matmul(a, b)]), resolve_target("cpu"), name="product")
    names = [str(parameter.name) for parameter in task.module["main"].params]
    assert len(set(names)) == 3
    sketch = own_sketch(task)
    assert sketch.is_symbolic, sketch.reason
    assert len(sketch.sample(4, seed=0)) == 4
