"""Warp tiles: correct as loops and as instructions, exact formulas, within limits, and compiled without spills."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import emulated, source_of
from schedules import comes_back, equal_counts, run, without_threads
from support import operators, oracles

from felixlike import _tvm
from felixlike.codegen import compile_source, cuda_binary, nvrtc
from felixlike.codegen.annotations import TensorCores
from felixlike.codegen.cubin import kernels_of
from felixlike.features import NAMES, formulas
from felixlike.frontend import make_task
from felixlike.hardware import PRECISIONS, check_precision, resolve_target, with_precision
from felixlike.measure.check.reference import double_precision
from felixlike.spaces import own_space
from felixlike.symbolic import Sketch, concrete_nest, sketches
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.program.source_size import source_characters

PLAIN = resolve_target("sm_90")
ON_TENSOR_CORES = [precision.name for precision in PRECISIONS if precision.is_reduced]
TARGETS = {name: with_precision(PLAIN, name) for name in ON_TENSOR_CORES}

OPERATORS: dict[str, Callable[[], Any]] = {
    "dense": lambda: operators.dense(32, 64, 48),
    "few_rows": lambda: operators.dense(20, 48, 40),
    "padded": lambda: operators.matmul(50, 40, 70),
    "batch_matmul": lambda: operators.batch_matmul(2, 32, 48, 32),
    "split": lambda: operators.matmul(16, 512, 32),
    "conv2d_3x3": lambda: operators.conv2d(16, 16, 32, relu=True),
    "conv2d_1x1": lambda: operators.conv2d(32, 16, 32, 1),
    "two_axes": lambda: operators.conv2d(16, 28, 16),
    "strided": lambda: operators.conv2d(16, 16, 32, stride=2),
    "conv1d": lambda: operators.conv1d(16, 32, 16),
    "conv2d_5x5": lambda: operators.conv2d(16, 8, 32, 5),
    "conv3d": lambda: operators.conv3d(16, 4, 8, 16),
    "nhwc": lambda: operators.conv2d_nhwc(16, 16, 32),
}
LARGE: dict[str, Callable[[], Any]] = {
    "dense": lambda: operators.dense(128, 768, 3072),
    "batch_matmul": lambda: operators.batch_matmul(12, 128, 64, 128),
    "conv2d_3x3": lambda: operators.conv2d(64, 56, 64, relu=True),
    "conv2d_1x1": lambda: operators.conv2d(64, 56, 256, 1),
    "odd": lambda: operators.matmul(77, 113, 53),
    "hundred_rows": lambda: operators.dense(100, 768, 768),
}


def on_tensor_cores(sketch: Sketch) -> bool:
    return TensorCores.key in sketch.trace_json()


@cache
def _sketches(name: str, precision: str = "tf32", *, real: bool = False) -> tuple[Sketch, ...]:
    own_sketches = sketches((LARGE if real else OPERATORS)[name](), TARGETS[precision], space="own")
    return tuple(filter(on_tensor_cores, own_sketches))


def _arguments(sketch: Sketch) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, [int(e) for e in p.shape]) for p in sketch.task.module["main"].params]


@cache
def _truth(name: str) -> Any:
    """Return the output for `_arguments` in float64."""
    sketch = _sketches(name)[0]
    return run(double_precision(sketch.task.module), _arguments(sketch))[-1]


def _error(got: Any, truth: Any) -> float:
    return float(np.abs(got - truth).max() / np.abs(truth).max())


@pytest.mark.parametrize("name", OPERATORS)
def test_loops_are_correct(name: str) -> None:
    """Lowered to loops, sketches give exact products with threads run serially."""
    assert _sketches(name)
    for sketch in _sketches(name):
        arguments = _arguments(sketch)
        (point,) = sketch.sample(1, seed=3).tolist()
        got = run(without_threads(sketch.schedule(point).mod), [a.astype("float32") for a in arguments])[-1]
        np.testing.assert_allclose(got, _truth(name), rtol=1e-5, atol=2e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the CUDA source for this machine")
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "tf32") for name in OPERATORS), ("padded", "float16"), ("padded", "bfloat16"), ("two_axes", "float16")],
)
def test_instructions_are_correct(name: str, precision: str, tmp_path: Path) -> None:
    """The generated CUDA source is run for every thread, with NVIDIA's tables of fragments.

    The error is within the rounding of the operands. It is not smaller, which shows that the operands are rounded."""
    rounding = check_precision(precision)
    all_sketches = _sketches(name, precision)
    all_kinds = precision == "tf32" and name in ("dense", "padded", "split", "conv2d_3x3")
    checked = all_sketches if all_kinds else {all_sketches[0], all_sketches[-1]}
    for number, sketch in enumerate(checked):
        arguments = _arguments(sketch)
        (point,) = sketch.sample(1, seed=7).tolist()
        folder = tmp_path / str(number)
        folder.mkdir()
        single = [a.astype("float32") for a in arguments]
        got = emulated(sketch.schedule(point).mod, TARGETS[precision], single, folder)[-1]
        assert rounding.unit / 50 < _error(got, _truth(name)) < rounding.tolerance / 2


@pytest.mark.parametrize("name", OPERATORS)
def test_formulas_equal_brute_force_counts(name: str) -> None:
    for sketch in _sketches(name):
        assert sketch.is_symbolic, sketch.reason
        points = sketch.sample(1, seed=5)
        assert equal_counts(sketch, points) > 50
        (point,) = points.tolist()
        values = dict(zip([v.name for v in sketch.variables], point, strict=True))
        assert concrete_nest(sketch.program, values) == oracles.tvm_nest(sketch.schedule(point))


@pytest.mark.parametrize("name", ["dense", "conv2d_3x3", "batch_matmul"])
def test_points_are_valid_exactly_where_they_are_accepted(name: str) -> None:
    accepted = refused = 0
    for sketch in _sketches(name, real=True):
        drawn = np.concatenate([sketch.sample(1, seed=1), sketch.sampler.any.draw(8, np.random.default_rng(2))])
        valid = sketch.valid(drawn)
        assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]
        accepted, refused = accepted + int(valid.sum()), refused + int((~valid).sum())
    assert accepted
    assert refused


def test_multiplications_are_weighted_by_their_speed() -> None:
    """A multiplication counts as 1/8 or 1/16, and the loads of four threads count as one."""
    rows = {}
    for precision in ON_TENSOR_CORES:
        sketch = _sketches("dense", precision)[0]
        features_of_sketch = formulas(sketch)
        store = next(
            i for i, name in enumerate(features_of_sketch.stores) if name.startswith("Y") and "shared" not in name
        )
        rows[precision] = dict(zip(NAMES, features_of_sketch.evaluate(sketch.sample(1, seed=1))[0][store], strict=True))
    assert [rows[p]["float_mul"] for p in ON_TENSOR_CORES] == [32 * 64 * 48 / n for n in (8, 16, 16)]
    assert [rows[p]["vector_extent"] for p in ON_TENSOR_CORES] == [8, 16, 16]
    assert all(rows[p]["iterations"] == 32 * 64 * 48 for p in ON_TENSOR_CORES)


def test_tensor_cores_are_used_only_where_requested_and_useful() -> None:
    """Sketches for float32 do not change, and tensor cores are not used for unsuitable shapes, types and operators."""
    tf32 = TARGETS["tf32"]
    float32_sketches = sketches(LARGE["dense"](), PLAIN, space="own")
    tf32_sketches = sketches(LARGE["dense"](), tf32, space="own")
    assert not any(map(on_tensor_cores, float32_sketches))
    instructions = [
        [json.loads(s.trace_json())[0] for s in of if not on_tensor_cores(s)]
        for of in (tf32_sketches, float32_sketches)
    ]
    assert instructions[0] == instructions[1]
    for func in (
        operators.matmul(1, 256, 64),
        operators.matmul(64, 8, 64),
        operators.depthwise(32, 16),
        operators.int8_matmul(64, 64, 64),
        operators.softmax(8, 32),
        operators.conv2d(3, 32, 32),
    ):
        own_sketches = sketches(func, tf32, space="own")
        assert own_sketches
        assert not any(map(on_tensor_cores, own_sketches))


def test_traces_survive_a_round_trip_and_keys_depend_on_precision() -> None:
    tasks = {name: make_task(OPERATORS["dense"](), target, name="dense") for name, target in TARGETS.items()}
    exact = make_task(OPERATORS["dense"](), PLAIN, name="dense")
    assert len({exact.key, *(task.key for task in tasks.values())}) == 4
    for trace in own_space(tasks["tf32"]).traces:
        schedule = _tvm.Schedule(exact.module)
        trace.apply_to_schedule(schedule, remove_postproc=False)
        comes_back(schedule, exact.module)
    for sketch in _sketches("dense"):
        for point in sketch.sample(2, seed=2).tolist():
            assert sketch.point(sketch.schedule(point).trace) == tuple(point)


def test_the_length_of_the_source_is_predicted() -> None:
    """Instructions have long operands, and are written once for each virtual thread."""
    ratios = []
    for name in ("dense", "batch_matmul", "conv2d_3x3"):
        for sketch in _sketches(name, real=True):
            (point,) = sketch.sample(1, seed=5).tolist()
            values = dict(zip([v.name for v in sketch.variables], point, strict=True))
            predicted = evaluate(source_characters(sketch.program), values)
            ratios.append(predicted / len(source_of(sketch.schedule(point).mod, TARGETS["tf32"])))
    assert len(ratios) > 10
    assert 0.7 < np.median(ratios) < 1.4
    assert 0.4 < min(ratios) < max(ratios) < 2.0


@pytest.fixture
def compiler() -> None:
    if nvrtc.library() is None:
        pytest.skip('NVRTC is not on this machine: pip install "felixlike[cuda]"')


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, precision) for name in ("dense", "conv2d_1x1") for precision in ON_TENSOR_CORES),
        *(("batch_matmul", "float16"), ("conv2d_3x3", "tf32"), ("odd", "bfloat16"), ("hundred_rows", "tf32")),
    ],
)
def test_random_points_compile(name: str, precision: str) -> None:
    """A random point compiles for each precision, on both architectures."""
    arch = "sm_80" if precision == "float16" else "sm_90"
    sketch = _sketches(name, precision, real=True)[-1]
    (point,) = sketch.sample(1, seed=5).tolist()
    target = with_precision(resolve_target(arch), precision)
    source = source_of(sketch.schedule(point).mod, target)
    assert f"felixlike_mma_{precision}(" in source
    (kernel,) = kernels_of(compile_source(source, arch), arch)
    assert kernel.threads % 32 == 0


GOOD = {
    "dense": {"i.0": 2, "i.1": 1, "i.2": 2, "j.0": 48, "j.1": 2, "j.2": 2, "k.0": 48, "k.1": 1},
    "batch_matmul": {"i.0": 2, "i.1": 1, "i.2": 2, "j.0": 2, "j.1": 2, "j.2": 2, "k.0": 4, "k.1": 1},
}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("precision", ON_TENSOR_CORES)
def test_good_points_do_not_spill(name: str, precision: str) -> None:
    """Tiles of 64 × 64 outputs per block of four warps do not spill with any number of pipeline stages."""
    compared = 0
    for sketch in _sketches(name, precision, real=True):
        if "RFactor" in sketch.trace_json():
            continue
        fetched = {v.name: v.choices[0] for v in sketch.variables if v.name.startswith("fetch")}
        point = [(GOOD[name] | fetched)[v.name] for v in sketch.variables]
        assert sketch.valid(np.array([point])).all()
        (kernel,) = kernels_of(cuda_binary(sketch.schedule(point).mod, TARGETS[precision]), "sm_90")
        assert kernel.local_bytes == 0, kernel
        assert kernel.registers <= 168, kernel
        compared += 1
    assert compared == 3


def _loads(sketch: Sketch) -> list[list[list[int]]]:
    """Return the indices that the threads of a warp load for the first instruction: two rows of A, a column of B."""
    (point,) = sketch.sample(1, seed=5).tolist()
    call = re.search(r"felixlike_mma_tf32\((.*)\);", source_of(sketch.schedule(point).mod, TARGETS["tf32"]))
    assert call is not None
    indices = re.findall(r"_shared_ptr\[(.*?)\](?:, |$)", call[1].replace("(int)threadIdx.x", "thread"))
    assert len(indices) == 12
    loop_variables = dict.fromkeys(re.findall(r"[a-z]\w*", " ".join(indices)), 0)  # variables of outer loops, at 0
    places = [[eval(index, loop_variables | {"thread": thread}) for thread in range(32)] for index in indices]
    return [places[start : start + 4] for start in (0, 4, 8)]


def test_operands_are_loaded_in_vectors_from_different_banks() -> None:
    """Where steps are adjacent, threads load vectors of four, and each eight threads cover all 32 banks."""
    for operand in _loads(_sketches("dense", real=True)[-1]):
        for thread in range(32):
            first = operand[0][thread]
            assert [places[thread] for places in operand] == [first + i for i in range(4)]
            assert first % 4 == 0
        for eight in range(0, 32, 8):
            assert {places[t] % 32 for places in operand for t in range(eight, eight + 8)} == set(range(32))


def test_single_words_are_loaded_from_different_banks() -> None:
    """Convolutions load single words of weights, whose taps are adjacent, and pairs along a row of the image."""
    *rows, columns = _loads(_sketches("conv1d")[-1])
    for operand in rows:
        for places in operand:
            assert len({place % 32 for place in places}) == 32
    for places in columns:
        for half in (places[:16], places[16:]):
            assert len({place % 32 for place in half}) == 16
