"""Constants packed for a GPU's threads: packed once, correct, exact formulas, and copied in whole vectors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from schedules import equal_counts, equal_to_tvms, run, without_threads
from support.operators import OPERATORS, dense

from felixlike import _tvm, codegen
from felixlike.codegen import cuda_binary, cuda_source, kernels_of, nvrtc
from felixlike.frontend import import_model, make_task
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.measure.child import trial_process
from felixlike.measure.packing import cut
from felixlike.runtime.compile_model import lowered_model
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")
NVRTC = pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed: felixlike[cuda]")

PACKED: dict[str, tuple[int, ...]] = {
    "dense_bias_relu": (6, 20),
    "dense_odd": (16, 16),
    "batch_matmul": (3, 4, 8),
    "matmul_odd": (5, 16),  # in the right order, but 13 columns do not fill vectors
    "conv1d": (4, 3, 6),
    "conv2d_3x3": (4, 3, 3, 6),
    "conv2d_7x7_strided": (3, 7, 7, 4),
    "conv2d_grouped": (2, 3, 3, 8),
    "conv3d": (2, 3, 3, 3, 4),
}
"""Small operator → the shape of its packed weight."""

UNPACKED = {"matmul": False, "conv2d_nhwc": True, "grouped_nhwc": True, "depthwise": True, "matvec": True}
"""Operator → whether to use its small size; the small matmul would be padded from 18 columns."""


@cache
def _sketches(name: str, *, small: bool = True, constant: bool = True) -> tuple[Sketch, ...]:
    func = dense(7, 13, 13) if name == "dense_odd" else OPERATORS[name](small_size=small)
    return sketches(make_task(func, SM_90, name=name, constants=[1] if constant else []), space="own")


def _copy_widths(sketch: Sketch) -> list[int]:
    """Return the number of elements of each operand that a thread copies at once."""
    return [v.choices[0] for v in sketch.variables if v.name.startswith("fetch")]


def _kernel(sketch: Sketch, point: list[int]) -> Any:
    func, _ = cut(sketch.schedule(point).mod["main"])
    return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("name", PACKED)
def test_results_and_formulas_are_correct(name: str) -> None:
    """Every sketch packs once, agrees with float64, and its formulas equal brute-force counts."""
    for sketch in _sketches(name):
        assert sketch.is_symbolic, sketch.reason
        module = sketch.task.module
        rng = np.random.default_rng(0)
        arguments = [rng.uniform(-1, 1, [int(e) for e in p.shape]) for p in module["main"].params]
        truth = run(double_precision(module), arguments)[-1]
        single = [argument.astype("float32") for argument in arguments]
        points = sketch.sample(2, seed=3)
        for point in points.tolist():
            scheduled = sketch.schedule(point).mod
            (packing,) = cut(scheduled["main"])[1]
            assert (packing.parameter, packing.shape) == (1, PACKED[name])
            got = run(without_threads(scheduled), single)[-1]
            np.testing.assert_allclose(got, truth, rtol=1e-5, atol=2e-5)
        assert equal_counts(sketch, points) > 50


@pytest.mark.parametrize("name", UNPACKED)
def test_constants_in_the_right_order_are_not_packed(name: str) -> None:
    for sketch in _sketches(name, small=UNPACKED[name]):
        assert cut(sketch.schedule(sketch.sample(1, seed=3)[0]).mod["main"])[1] == ()


@pytest.mark.parametrize("name", ["dense_bias_relu", "batch_matmul"])
def test_nests_and_features_equal_tvms(name: str) -> None:
    for sketch in _sketches(name, small=False):
        equal_to_tvms(sketch, sketch.sample(2, seed=7))


@pytest.mark.parametrize("name", ["dense_bias_relu", "matmul_odd", "conv2d_3x3"])
def test_points_are_valid_exactly_where_they_are_accepted(name: str) -> None:
    refused = 0
    for sketch in _sketches(name, small=False):
        drawn = np.concatenate([sketch.sample(2, seed=1), sketch.sampler.any.draw(8, np.random.default_rng(2))])
        valid = sketch.valid(drawn)
        assert valid[:2].all()
        assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]
        refused += int((~valid).sum())
    assert refused


@pytest.mark.parametrize("name", ["dense_bias_relu", "conv2d_3x3"])
def test_copies_are_whole_vectors(name: str) -> None:
    """Packed constants are copied in vectors of four, and packing does not change the number of sketches.

    Asynchronous copies of unpacked constants would transpose single elements."""
    packed, plain = _sketches(name, small=False), _sketches(name, small=False, constant=False)
    assert [_copy_widths(s)[1] for s in packed] == [4] * len(packed)
    assert 1 in [_copy_widths(s)[1] for s in plain]
    assert len(packed) == len(plain)


def test_points_and_traces_convert_both_ways() -> None:
    for sketch in _sketches("dense_odd"):
        for point in sketch.sample(2, seed=2).tolist():
            assert sketch.point(sketch.schedule(point).trace) == tuple(point)


@NVRTC
def test_good_points_do_not_spill() -> None:
    """The tile of `test_thread_tile.GOOD` does not spill with any number of pipeline stages."""
    values = {"i.0": 1, "i.1": 2, "i.2": 16, "j.0": 24, "j.1": 2, "j.2": 16, "k.0": 96, "k.1": 2}
    compared = 0
    for sketch in _sketches("dense_bias_relu", small=False):
        if "RFactor" in sketch.trace_json():
            continue
        fetched = {v.name: v.choices[0] for v in sketch.variables if v.name.startswith("fetch")}
        binary = cuda_binary(_kernel(sketch, [(values | fetched)[v.name] for v in sketch.variables]), SM_90)
        (kernel,) = kernels_of(binary, "sm_90")
        assert kernel.local_bytes == 0, kernel
        assert kernel.registers <= 168, kernel
        compared += 1
    assert compared == 3


@NVRTC
@pytest.mark.parametrize("name", ["dense_bias_relu", "matmul_odd"])
def test_measured_candidates_pack_on_the_gpu(name: str) -> None:
    """The constant is packed once, by a separate kernel that is correct when its threads run serially."""
    sketch = _sketches(name)[0]
    scheduled = sketch.schedule(sketch.sample(1, seed=4)[0]).mod
    executable, packed = trial_process._compile(scheduled, SM_90)
    assert packed == [(1, PACKED[name], "float32")]
    kernels = kernels_of(codegen.compile_source(cuda_source(executable), "sm_90"), "sm_90")
    assert sorted(kernel.name for kernel in kernels) == ["main_kernel", "pack0_kernel"]

    (packing,) = cut(scheduled["main"])[1]
    packing_module = _tvm.IRModule({"main": packing.function.with_attr("global_symbol", "main")})
    constant = np.random.default_rng(0).standard_normal(
        [int(e) for e in sketch.task.module["main"].params[1].shape]
    ).astype("float32")  # fmt: skip
    empty = np.full(packing.shape, np.nan, "float32")
    expected = run(packing_module, [constant, empty])[-1]
    assert np.array_equal(
        run(without_threads(codegen.default_schedules(packing_module, SM_90)), [constant, empty])[-1], expected
    )
    assert np.isfinite(expected).all()


def test_models_compile_with_packed_weights() -> None:
    """The compiled model has the packed weight, and the imported model is unchanged."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 8, 3, padding=1)
    model = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    imported = import_model(model, (torch.randn(1, 3, 12, 12),), SM_90)
    before = imported.module.script()
    (task,) = (t for t in imported.tasks if t.layout_free)
    sketch = sketches(task, space="own")[0]
    lowered, executable = lowered_model(imported, {task.key: sketch.schedule(sketch.sample(1, seed=1)[0])})
    assert imported.module.script() == before
    assert "(8, 3, 3, 3)" not in str(lowered)
    values: list[Any] = [getattr(c, "value", None) for c in _tvm.found(lowered["main"], _tvm.ir.GenericConst)]
    (packed,) = [value.numpy() for value in values if list(getattr(value, "shape", ())) == [3, 3, 3, 8]]
    assert np.array_equal(packed, layer.weight.detach().numpy().transpose(1, 2, 3, 0))
    if nvrtc.library() is not None:
        assert kernels_of(codegen.compile_source(cuda_source(executable), "sm_90"), "sm_90")
