"""Products of pairs of bfloat16 numbers on CPUs: offered where they are faster, rounded correctly, exact formulas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from schedules import equal_counts, equal_nests
from support import kernels
from support import operators as op

from felixlike import _tvm
from felixlike.codegen.annotations import Narrow, Pairs
from felixlike.features import formulas
from felixlike.features.table import NAMES
from felixlike.frontend import make_task
from felixlike.hardware import Form, described_target, imitated_target, instruction_sets, with_precision
from felixlike.spaces.cpu import narrow_weights
from felixlike.symbolic import Sketch, sketches

ZEN5 = described_target("zen5", cores=2)
RUNS = imitated_target("zen5", cores=2)
"""Schedules for a processor with the instruction, and code that runs on any."""

SMALL: dict[str, Callable[[], Any]] = {
    "rows": lambda: op.matmul(4, 12, 48),
    "one row": lambda: op.matmul(1, 12, 32),
    "rows that are padded": lambda: op.matmul(19, 6, 16),
    "columns that are padded": lambda: op.dense(4, 6, 44),
    "steps that are padded": lambda: op.matmul(4, 7, 32),
    "all padded": lambda: op.dense(19, 7, 23),
    "weights as PyTorch has them": lambda: op.dense(4, 6, 48),
    "convolution": lambda: op.conv2d_nhwc(4, 6, 16),
    "convolution with strides": lambda: op.conv2d_nhwc(6, 8, 32, stride=2),
    "convolution of groups": lambda: op.grouped_nhwc(8, 6, 16, 2),
    "convolution of groups of several vectors": lambda: op.grouped_nhwc(16, 3, 64, 2),
    "convolution of groups with strides": lambda: op.grouped_nhwc(12, 7, 12, 3, stride=2),
}


BATCHES: dict[str, Callable[[], Any]] = {
    "inputs": lambda: op.matmul(16, 12, 32),
    "inputs, the second transposed": lambda: op.batch_matmul(2, 16, 6, 32),
    "inputs that are padded": lambda: op.batch_matmul(2, 17, 7, 20),
    "inputs whose last vector is shorter": lambda: op.matmul(20, 7, 21),
}
"""Products without constants, whose second factor is copied into panels."""


def _sketches(
    func: Any, target: Any = ZEN5, precision: str = "bfloat16", constants: Sequence[int] = (1,)
) -> dict[str, Sketch]:
    task = make_task(func, with_precision(target, precision), name="main", constants=constants)
    return {sketch.precision: sketch for sketch in sketches(task, space="own")}


def _small(name: str, target: Any = ZEN5) -> Sketch:
    return _sketches((SMALL | BATCHES)[name](), target, constants=[] if name in BATCHES else [1])["bfloat16"]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer pairs for small operators too."""
    monkeypatch.setattr(narrow_weights, "faster_form", lambda *_: Form.PAIRS)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", [*SMALL, *BATCHES])
def test_programs_and_formulas_are_exact(name: str) -> None:
    sketch = _small(name)
    points = sketch.sample(4, seed=3)
    assert equal_counts(sketch, points) > 0
    equal_nests(sketch, points)
    assert sum(buffer.item_bytes == 2 for buffer in sketch.program.buffers) == 2


_WITHOUT_THE_INSTRUCTION = ("one row", "all padded", "convolution with strides", *list(BATCHES)[2:])
"""Those that run on processors without the instruction too, where only what replaces it differs."""


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("name", "mcpu"),
    [
        *((name, None) for name in (*SMALL, *BATCHES)),
        *((name, mcpu) for name in _WITHOUT_THE_INSTRUCTION for mcpu in ("x86-64-v3", "x86-64")),
    ],
)
def test_both_factors_are_rounded_to_nearest_and_sums_are_not(name: str, mcpu: str | None) -> None:
    """The kernel's answer is the float64 answer for factors that PyTorch rounds, with the instruction and without."""
    if mcpu is not None and _missing(mcpu):
        pytest.skip(f"this processor cannot run code for {mcpu}: it has no {', '.join(_missing(mcpu))}")
    target = RUNS if mcpu is None else _tvm.Target({**RUNS.export(), "mcpu": mcpu})
    func, sketch = (SMALL | BATCHES)[name](), _small(name, target)
    left, right, *_ = arrays = kernels.arrays(func)
    expected = kernels.run(
        _tvm.IRModule({"main": func}), [kernels.halves(left), kernels.halves(right), *arrays[2:]], target
    )
    for point in sketch.sample(2, seed=5).tolist():
        answer = kernels.answer(sketch, point, arrays)
        assert np.abs(answer - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.usefixtures("always")
def test_infinities_and_nan_are_those_of_pytorch() -> None:
    """Finite numbers above the largest one of bfloat16 become infinite, as they do in PyTorch."""
    func = op.matmul(6, 8, 16)
    left, right, *rest = kernels.arrays(func)
    left[0, 1], left[1, 2], left[2, 3], left[3, 4] = np.nan, np.inf, -np.inf, 3.4e38
    left[4, 0], left[4, 1] = np.inf, -np.inf
    right[0], right[1] = np.abs(right[0]), np.abs(right[1])
    left[5, 5] = np.frombuffer(np.uint32(0x7F800001).tobytes(), np.float32)[0]  # rounding must not make it infinite
    sketch = _sketches(func, RUNS)["bfloat16"]
    with np.errstate(invalid="ignore"):
        expected = (kernels.halves(left).astype("float64") @ kernels.halves(right).astype("float64")).astype("float32")
    assert np.isnan(expected[[0, 4, 5]]).all()
    assert np.isinf(expected[1:4]).all()
    for point in sketch.sample(2, seed=5).tolist():
        np.testing.assert_array_equal(kernels.answer(sketch, point, [left, right, *rest]), expected)


def _missing(mcpu: str) -> list[str]:
    """Return the instruction sets of a processor that the host lacks."""
    sets = instruction_sets(_tvm.cpu_features(_tvm.Target({"kind": "llvm", "mcpu": mcpu})))
    return sorted(sets - _tvm.host_features())


def _code(target: Any) -> str:
    """Return the assembly of a product's kernel."""
    return kernels.assembly(_sketches(op.matmul(64, 512, 512), target)["bfloat16"])


def test_the_instruction_is_used_in_vectors_without_spills() -> None:
    code = _code(ZEN5)
    lines = [line for line in code.splitlines() if "vdpbf16ps" in line]
    assert len(lines) >= 8
    assert all("zmm" in line for line in lines)
    assert "felixlike_pairs" not in code
    assert "Spill" not in code


def test_processors_without_the_instruction_get_none() -> None:
    """A described machine with the instruction can be imitated on others, whose code has multiply-adds."""
    without = _tvm.Target({**RUNS.export(), "mcpu": "znver3"})
    assert "vdpbf16ps" not in _code(without)
    assert "vfmadd" in _code(without)
    described = described_target("zen3", cores=2)
    assert set(_sketches(op.matmul(64, 512, 512), described)) == {"float32"}


def test_pairs_are_offered_where_they_are_faster() -> None:
    """Not for other types, or where copying takes longer than it saves."""
    both, one = {"bfloat16", "float32"}, {"float32"}
    assert set(_sketches(op.matmul(64, 512, 512))) == both
    assert set(_sketches(op.dense(100, 511, 500))) == both
    assert set(_sketches(op.matmul(64, 512, 512), constants=())) == both
    assert set(_sketches(op.conv2d_nhwc(64, 28, 8))) == both
    assert set(_sketches(op.matmul(512, 512, 8))) == one
    assert set(_sketches(op.int8_matmul(64, 512, 512))) == one
    assert set(_sketches(op.matmul(64, 512, 512), precision="float32")) == one


def test_grouped_convolutions_have_pairs_where_groups_are_vectors() -> None:
    """Four channels are one, of 128 bits. Neighbouring channels are neighbours in memory if channels are last."""
    both, one = {"bfloat16", "float32"}, {"float32"}
    assert set(_sketches(op.grouped_nhwc(128, 56, 128, 32))) == both
    assert set(_sketches(op.grouped_nhwc(256, 28, 256, 32))) == both
    assert set(_sketches(op.grouped_nhwc(96, 28, 96, 4))) == both
    assert set(_sketches(op.grouped_nhwc(512, 14, 512, 8))) == both
    assert set(_sketches(op.grouped(512, 14, 512, 8))) == one


def test_rounding_groups_may_take_longer_than_pairs_save() -> None:
    """The four channels of a group are multiplied by four weights for a quarter of the elements. Padding is a copy."""
    both, one = {"bfloat16", "float32"}, {"float32"}
    assert set(_sketches(op.grouped_nhwc(128, 56, 128, 32, stride=2))) == both
    assert set(_sketches(op.grouped_nhwc(128, 56, 128, 32, stride=3))) == one


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("channels", [3, 6])
def test_groups_that_are_no_vectors_stay_float32(channels: int) -> None:
    """Pairs would lie across two groups, or be rounded one by one."""
    assert set(_sketches(op.grouped_nhwc(2 * channels, 6, 16, 2))) == {"float32"}


def test_one_row_rounds_only_weights() -> None:
    """The time is that of loading weights in both forms, so the one that rounds less is offered."""
    sketch = _sketches(op.matmul(1, 2048, 2048))["bfloat16"]
    assert Narrow.key in sketch.trace_json()
    assert Pairs.key not in sketch.trace_json()
    assert Pairs.key in _sketches(op.matmul(64, 2048, 2048))["bfloat16"].trace_json()


def test_float32_schedules_are_those_of_float32_targets() -> None:
    func = op.matmul(64, 512, 512)
    exact, plain = _sketches(func)["float32"], _sketches(func, precision="float32")
    assert set(plain) == {"float32"}
    assert json.loads(exact.trace_json())[0] == json.loads(plain["float32"].trace_json())[0]
    assert exact.key == plain["float32"].key


def test_features_are_those_of_half_as_many_steps() -> None:
    """An instruction for pairs takes the time of one for float32, and a pair has the bytes of a float32."""
    of = _sketches(op.matmul(64, 1024, 1024))
    values = {name: formulas(of[name]).evaluate(of[name].sample(1, seed=0))[0].max(axis=0) for name in of}
    rows = {name: dict(zip(NAMES, values[name], strict=True)) for name in of}
    assert rows["bfloat16"]["float_mul"] == rows["float32"]["float_mul"] / 2
    assert rows["bfloat16"]["vector_extent"] == rows["float32"]["vector_extent"]
    assert rows["bfloat16"]["moves"] < 0.6 * rows["float32"]["moves"]
    assert rows["bfloat16"]["traffic_l2"] < 0.6 * rows["float32"]["traffic_l2"]


@pytest.mark.usefixtures("always")
def test_what_computes_the_rows_is_rounded_once_and_not_recomputed() -> None:
    """An operand that is computed before the product is computed where it is copied."""
    sketch = _sketches(_after_relu(), RUNS)["bfloat16"]
    left, right, *_ = arrays = kernels.arrays(_after_relu())
    expected = kernels.halves(np.maximum(left, 0)) @ kernels.halves(right)
    for point in sketch.sample(2, seed=1).tolist():
        assert np.abs(kernels.answer(sketch, point, arrays) - expected).max() <= 1e-5 * np.abs(expected).max()
    points = sketch.sample(2, seed=1)
    assert equal_counts(sketch, points) > 0


def _after_relu() -> Any:
    te = _tvm.te
    a, b = te.placeholder((4, 8), name="A"), te.placeholder((8, 32), name="B")
    relu = te.compute((4, 8), lambda i, k: te.max(a[i, k], 0.0), name="R")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((4, 32), lambda i, j: te.sum(relu[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])
