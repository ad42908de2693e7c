"""Transposed convolutions on a GPU: tiles over phases with interleaved outputs, also with split reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from schedules import equal_counts, run, without_threads
from torch import nn

from felixlike import _tvm
from felixlike.codegen import cuda_binary, kernels_of, nvrtc
from felixlike.frontend import Task, import_model
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.measure.packing import cut
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "4×4, stride 2, of the ten subgraphs": (lambda: nn.ConvTranspose2d(256, 128, 4, 2, 1), (1, 256, 8, 8)),
    "long sums": (lambda: nn.ConvTranspose2d(128, 6, 4, 2, 1), (1, 128, 4, 4)),
    "odd windows": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), (1, 4, 4, 4)),
    "one dimension": (lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1), (1, 4, 8)),
    "three dimensions": (lambda: nn.ConvTranspose3d(2, 4, 2, 2), (1, 2, 3, 3, 3)),
    "groups": (lambda: nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=2), (1, 8, 4, 4)),
    "stride 3": (lambda: nn.ConvTranspose2d(4, 6, 5, 3, 1), (1, 4, 3, 3)),
}
LARGE, LONG = list(MODELS)[:2]


@cache
def _task(name: str) -> Task:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = nn.Sequential(make(), nn.ReLU()).eval()
    (task,) = import_model(model, (torch.randn(*shape),), SM_90).tasks
    return task


@cache
def _sketches(name: str) -> tuple[Sketch, ...]:
    return sketches(_task(name), space="own")


def _is_split(sketch: Sketch) -> bool:
    return "RFactor" in sketch.trace_json()


@pytest.mark.parametrize("name", [name for name in MODELS if name != LARGE])
def test_results_and_formulas_are_correct(name: str) -> None:
    """The epilogue of bias and activation runs in the order of the phases, and weights are packed once."""
    module = _task(name).module
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-1, 1, [int(e) for e in p.shape]) for p in module["main"].params]
    truth = run(double_precision(module), arguments)[-1]
    single = [argument.astype("float32") for argument in arguments]
    assert _sketches(name)
    for sketch in _sketches(name):
        assert sketch.is_symbolic, sketch.reason
        points = sketch.sample(1, seed=1)
        scheduled = sketch.schedule(points[0]).mod
        assert len(cut(scheduled["main"])[1]) == 1
        np.testing.assert_allclose(run(without_threads(scheduled), single)[-1], truth, rtol=1e-5, atol=2e-5)
        assert equal_counts(sketch, points) > 50


@pytest.mark.parametrize("name", [LARGE, LONG])
def test_reductions_are_split_if_outputs_are_few(name: str) -> None:
    assert sorted(map(_is_split, _sketches(name))) == [False] * 3 + [True] * 2


def test_points_are_valid_exactly_where_they_are_accepted() -> None:
    refused = 0
    for sketch in _sketches(LARGE):
        assert sketch.is_symbolic, sketch.reason
        drawn = np.concatenate([sketch.sample(2, seed=1), sketch.sampler.any.draw(8, np.random.default_rng(2))])
        valid = sketch.valid(drawn)
        assert valid[:2].all()
        assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]
        refused += int((~valid).sum())
    assert refused


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed: felixlike[cuda]")
def test_random_points_compile() -> None:
    for sketch in _sketches(LARGE):
        (point,) = sketch.sample(1, seed=1).tolist()
        func = cut(sketch.schedule(point).mod["main"])[0].with_attr("global_symbol", "main")
        kernels = kernels_of(cuda_binary(_tvm.IRModule({"main": func}), SM_90), "sm_90")
        assert len(kernels) == 1 + _is_split(sketch)
        assert all(kernel.threads <= 1024 for kernel in kernels)
