"""Weights in bfloat16 on CPUs: offered where loading them takes the time, rounded correctly, with exact formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from schedules import equal_counts
from support import operators as op
from support import oracles
from support.tvm_view import tvm_view

from felixlike import _tvm, codegen
from felixlike.features import formulas
from felixlike.features.table import NAMES
from felixlike.frontend import make_task
from felixlike.hardware import Form, resolve_target, target_device, with_precision
from felixlike.measure.packing import cut
from felixlike.spaces import design
from felixlike.spaces.cpu import narrow_weights
from felixlike.symbolic import Sketch, concrete_nest, sketches

HOST = resolve_target("cpu")
AVX2 = _tvm.Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})

SMALL: dict[str, tuple[Callable[[], Any], bool]] = {
    "one row": (lambda: op.matmul(1, 12, 32), False),
    "one row, padded": (lambda: op.matmul(1, 12, 29), True),
    "rows": (lambda: op.dense(4, 6, 48), False),
    "rows, padded": (lambda: op.dense(5, 6, 44), True),
    "convolution": (lambda: op.conv2d(4, 6, 16), False),
}
"""Operators, and whether their constant is padded when it is packed."""


def _sketches(func: Any, target: Any = AVX2, precision: str = "bfloat16") -> dict[str, Sketch]:
    task = make_task(func, with_precision(target, precision), name="main", constants=[1])
    return {sketch.precision: sketch for sketch in sketches(task, space="own")}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer narrow weights for small operators too."""
    monkeypatch.setattr(narrow_weights, "faster_form", lambda *_: Form.WEIGHTS)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", SMALL)
def test_programs_and_formulas_are_exact(name: str) -> None:
    make, padded = SMALL[name]
    sketch = _sketches(make())["bfloat16"]
    points = sketch.sample(4, seed=3)
    assert equal_counts(sketch, points) > 0
    names = [variable.name for variable in sketch.variables]
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        schedule = sketch.schedule(point)
        assert concrete_nest(sketch.program, dict(zip(names, point, strict=True))) == oracles.tvm_nest(schedule), point
        # TVM's extractor removes only packing blocks that move elements.
        kernel = _tvm.Schedule(_tvm.IRModule({"main": cut(schedule.mod["main"])[0]}))
        theirs = oracles.tvm_features(sketch, kernel)
        known = ~np.isnan(ours)
        assert known.mean() > 0.75
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=1e-9)
    (weight,) = [buffer for buffer in sketch.program.buffers if buffer.item_bytes == 2]
    assert (weight.origin is None) == padded
    assert [b.item_bytes for b in sketch.program.buffers if b is not weight] == [4] * (len(sketch.program.buffers) - 1)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", SMALL)
def test_weights_are_rounded_to_nearest_and_nothing_else_is(name: str) -> None:
    """The kernel's answer is the float64 answer for weights that PyTorch rounds."""
    func = SMALL[name][0]()
    sketch = _sketches(func, HOST)["bfloat16"]
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(e) for e in p.shape]).astype("float32") for p in sketch.task.module["main"].params
    ]
    halves = torch.from_numpy(arrays[1]).bfloat16().float().numpy()
    expected = _run(_tvm.IRModule({"main": func}), [arrays[0], halves, *arrays[2:]])
    for point in sketch.sample(2, seed=5).tolist():
        kernel, (packing,) = cut(sketch.schedule(point).mod["main"])
        assert packing.dtype == "bfloat16"
        packed = _tvm.runtime.empty(packing.shape, packing.dtype)
        _library({"pack": packing.function})["pack"](_tvm.runtime.tensor(arrays[1]), packed)
        answer = _run(_tvm.IRModule({"main": kernel}), [arrays[0], packed, *arrays[2:]])
        assert np.abs(answer - expected).max() <= 1e-5 * np.abs(expected).max()


def _library(functions: dict[str, Any]) -> Any:
    module = _tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    return codegen.compile_primfuncs(codegen.default_schedules(module, HOST), HOST).jit()


def _run(module: Any, arrays: list[Any]) -> npt.NDArray[np.float32]:
    """Return the last parameter after a call."""
    arguments = [_tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    _library({"main": module["main"]})["main"](*arguments)
    answer: npt.NDArray[np.float32] = arguments[-1].numpy()
    return answer


def test_weights_become_float32_in_registers() -> None:
    sketch = _sketches(op.matmul(1, 1024, 1024))["bfloat16"]
    kernel, _ = cut(sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod["main"])
    module = _tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    code = codegen.compile_primfuncs(module, sketch.task.target).mod.inspect_source("asm")
    assert "vpmovzxwd" in code
    assert "vpslld" in code


def test_they_are_offered_where_loading_takes_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for weights that the L2 cache holds, for many rows, for operands that are not constant, for other types."""
    device = replace(target_device(AVX2), l2_bytes=2**19, precision="bfloat16")
    monkeypatch.setattr(design, "target_device", lambda _: device)
    both, one = {"bfloat16", "float32"}, {"float32"}
    assert set(_sketches(op.matmul(1, 512, 512))) == both
    assert set(_sketches(op.matmul(8, 512, 512))) == both
    assert set(_sketches(op.matmul(64, 512, 512))) == one
    assert set(_sketches(op.matmul(1, 256, 512))) == one
    assert set(_sketches(op.int8_matmul(1, 1024, 1024))) == one
    inputs_only = make_task(op.matmul(1, 512, 512), with_precision(AVX2, "bfloat16"), name="main")
    assert [sketch.precision for sketch in sketches(inputs_only, space="own")] == ["float32"]


def test_float32_schedules_are_those_of_float32_targets() -> None:
    func = op.matmul(1, 1024, 1024)
    exact, plain = _sketches(func)["float32"], _sketches(func, precision="float32")
    assert set(plain) == {"float32"}
    assert json.loads(exact.trace_json())[0] == json.loads(plain["float32"].trace_json())[0]
    assert exact.key == plain["float32"].key
    assert exact.task.key != plain["float32"].task.key


def test_narrow_weights_halve_the_traffic() -> None:
    """The bytes from main memory are those of the weights, twice as many in float32."""
    of = _sketches(op.matmul(1, 1024, 1024))
    point = of["float32"].sample(1, seed=0)
    column = NAMES.index("traffic_l2")
    narrow, wide = (formulas(of[name]).evaluate(point)[0, :, column].max() for name in ("bfloat16", "float32"))
    assert narrow == pytest.approx(wide / 2, rel=0.05)
