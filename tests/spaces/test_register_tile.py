"""Register tiles: golden programs, exact bounds and formulas, correct results for odd sizes, replay of traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import equal_counts
from support import operators as op
from support import oracles
from support.tvm_view import tvm_view

from felixlike import _tvm
from felixlike.features import formulas
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target, target_device
from felixlike.measure import MeasurePool, Status
from felixlike.search import Candidate
from felixlike.spaces import noted_bounds
from felixlike.spaces.blocks import blocks_of
from felixlike.spaces.contraction import read_contraction
from felixlike.spaces.roles import choose_roles
from felixlike.symbolic import Sketch, sketches

AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
"""A fixed target, because golden texts must not depend on the host's vector length and number of cores."""

CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "dense": (lambda: op.dense(16, 24, 64), (1,)),
    "dense_anew": (lambda: op.dense(16, 24, 64), ()),
    "dense_tail": (lambda: op.dense(53, 24, 40), (1,)),
    "dense_long": (lambda: op.dense(20, 2176, 32), (1,)),
    "matmul": (lambda: op.matmul(32, 16, 48), ()),
    "matmul_odd": (lambda: op.matmul(53, 7, 13), ()),
    "matmul_long": (lambda: op.matmul(32, 320, 32), ()),
    "batch_matmul": (lambda: op.batch_matmul(3, 32, 8, 32), ()),
    "conv1d": (lambda: op.conv1d(6, 24, 32), (1,)),
    "conv2d": (lambda: op.conv2d(6, 8, 32, relu=True), (1,)),
    "conv2d_strided": (lambda: op.conv2d(4, 9, 16, stride=2), (1,)),
    "conv2d_dilated": (lambda: op.conv2d(4, 9, 16, dilation=2, padding=2), (1,)),
    "conv2d_1x1": (lambda: op.conv2d(8, 7, 32, 1, relu=True), (1,)),
    "conv2d_1x1_padded": (lambda: op.conv2d(144, 32, 17, 1, relu=True), (1,)),
    "conv2d_nhwc": (lambda: op.conv2d_nhwc(4, 8, 16), (1,)),
    "conv2d_nhwc_batch": (lambda: op.conv2d_nhwc(232, 2, 16, batch=8), (1,)),
    "conv2d_nhwc_first": (lambda: op.conv2d_nhwc(1, 16, 6), (1,)),
    "conv3d": (lambda: op.conv3d(2, 4, 8, 16), (1,)),
    "grouped": (lambda: op.grouped(8, 8, 32, 2), (1,)),
    "depthwise": (lambda: op.depthwise(6, 16), (1,)),
    "depthwise_nhwc": (lambda: op.depthwise_nhwc(32, 7), (1,)),
    "depthwise_nhwc_strided": (lambda: op.depthwise_nhwc(32, 8, 2), (1,)),
    "scaled_residual": (lambda: op.scaled_residual(6, 16), (1,)),
}


def _task(name: str, target: Any = AVX512) -> Task:
    make, constants = CASES[name]
    return make_task(make(), target, name=name, constants=constants)


def _sketch_of(func: Any) -> Sketch:
    (sketch,) = sketches(make_task(func, AVX512, name="main"), space="own")
    return sketch


def _sketch(name: str, target: Any = AVX512) -> Sketch:
    (sketch,) = sketches(_task(name, target), space="own")
    return sketch


@pytest.mark.parametrize("name", CASES)
def test_program(name: str, golden: Callable[[str, str], None]) -> None:
    sketch = _sketch(name)
    assert sketch.is_symbolic, sketch.reason
    golden(f"programs/own_{name}", str(sketch.program))


@pytest.mark.parametrize("name", CASES)
def test_points_are_valid_exactly_where_they_are_accepted(name: str) -> None:
    sketch = _sketch(name)
    drawn = np.concatenate([sketch.sample(3, seed=1), sketch.sampler.by_tvm(12, np.random.default_rng(2))])
    valid = sketch.valid(drawn)
    assert valid[:3].all()
    assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]


EXACT = [
    *("dense", "dense_anew", "dense_tail", "dense_long", "matmul", "matmul_odd", "batch_matmul"),
    *(
        "conv1d",
        "conv2d",
        "conv2d_1x1_padded",
        "conv2d_nhwc_batch",
        "conv2d_nhwc_first",
        "depthwise",
        "depthwise_nhwc",
        "depthwise_nhwc_strided",
        "scaled_residual",
    ),
]


@pytest.mark.parametrize("name", EXACT)
def test_formulas_equal_brute_force_counts(name: str) -> None:
    sketch = _sketch(name)
    assert equal_counts(sketch, sketch.sample(2, seed=5)) > 50


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "dense_long", "batch_matmul", "conv2d", "conv2d_1x1_padded", "conv2d_nhwc_batch", "conv3d"),
        *("depthwise", "depthwise_nhwc", "depthwise_nhwc_strided"),
    ],
)
def test_views_equal_tvms_features(name: str) -> None:
    sketch = _sketch(name)
    points = sketch.sample(4, seed=7)
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        theirs = oracles.tvm_features(sketch, sketch.schedule(point))
        known = ~np.isnan(ours)
        assert known.mean() > 0.75
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=1e-9)


def test_the_hot_block_has_no_predicate() -> None:
    schedule = _sketch("dense_tail").schedule(_sketch("dense_tail").sample(1, seed=0)[0])
    realizes: list[Any] = []
    _tvm.structural_walk(schedule.mod["main"].body, (_tvm.s_tir.SBlockRealize, realizes.append))
    hot_blocks = [realize for realize in realizes if str(realize.block.name_hint) == "Y_update"]
    assert len(hot_blocks) == 1
    assert int(hot_blocks[0].predicate) == 1


def test_rows_are_padded_for_better_tiles_without_a_copy() -> None:
    """512 rows are padded for tiles of 6×4 vectors, which load less than tiles of 4×4; the last tile has fewer rows."""
    sketch = _sketch_of(op.matmul(512, 64, 512))
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(schedule.get_sblock("C_update"))]
    assert math.prod(extents) == 516 * 64 * 512
    blocks = {str(b.name_hint) for b in _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)}
    assert not any(name.startswith("A_pad") for name in blocks)


def test_padded_vectors_are_padded_further_for_better_tiles() -> None:
    """197 columns are 13 vectors, a prime number, so they are padded to 14 for tiles of more than one vector."""
    sketch = _sketch_of(op.matmul(60, 32, 197))
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(schedule.get_sblock("C_update"))]
    assert math.prod(extents) == 60 * 32 * 14 * 16


def test_the_operand_that_is_packed_once_is_vectorized() -> None:
    """The weights are packed, and the samples are not.

    One core packs the weights for all rows. The vectors of 100 samples are too few for that, and each core would
    transpose the same samples again."""
    sketch = _sketch_of(op.dense(100, 64, 333))
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    blocks = {str(b.name_hint) for b in _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)}
    assert "W_pad_global" in blocks
    assert not any(name.startswith("X") for name in blocks)


def test_rows_of_small_images_lie_along_the_batch() -> None:
    for channels, size, batch, rows in ((256, 4, 8, 8), (256, 4, 1, 4), (256, 7, 8, 7), (64, 4, 8, 4)):
        task = make_task(op.conv2d_nhwc(channels, size, 16, batch=batch), AVX512, name="main", constants=(1,))
        schedule = _tvm.s_tir.Schedule(task.module)
        (block,) = [b for b in blocks_of(schedule) if read_contraction(schedule, b) is not None]
        contraction = read_contraction(schedule, block)
        assert contraction is not None
        roles = choose_roles(contraction, target_device(AVX512))
        assert roles is not None
        assert roles.rows is not None
        assert roles.rows.extent == rows


def test_narrow_outputs_are_padded_to_a_vector() -> None:
    """The output is padded instead of transposing the other operand."""
    sketch = _sketch_of(op.matmul(64, 32, 13))
    vectors = [loop for _, path in sketch.program.stores() for loop in path if loop.kind == "vector"]
    assert {loop.extent.value for loop in vectors} == {16}
    assert "A_global" not in str(sketch.program)


def test_1x1_convolutions_are_padded_like_products() -> None:
    """14 columns use vectors of 16 lanes instead of 2, and 29 channels use tiles of more than one row."""
    sketch = _sketch_of(op.conv2d(12, 14, 29, 1))
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    block = next(b for b in _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock) if "update" in b.name_hint)
    extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(schedule.get_sblock(block.name_hint))]
    assert extents[-1] == 16
    assert math.prod(extents) > 29 * 14 * 14 * 12


def test_matrices_used_once_are_not_transposed() -> None:
    task = make_task(op.matmul(64, 32, 1), AVX512, name="matvec")
    assert not any("A_global" in str(sketch.program) for sketch in sketches(task, space="own"))


def test_bounds_keep_accumulators_in_registers() -> None:
    sketch = _sketch("dense")
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0])
    bounds = noted_bounds(schedule.get(schedule.get_sblock("Y_update")))
    assert bounds is not None
    assert (bounds.least_accumulators, bounds.registers, bounds.cores) == (12, 32, 2)


@pytest.mark.parametrize(("mcpu", "lanes"), [("skylake-avx512", 16), ("haswell", 8)])
def test_lanes_follow_the_processor(mcpu: str, lanes: int) -> None:
    sketch = _sketch("dense", _tvm.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}))
    vectors = [loop for _, path in sketch.program.stores() for loop in path if loop.kind == "vector"]
    assert {loop.extent.value for loop in vectors} == {lanes}


def test_traces_replay_from_json() -> None:
    sketch = _sketch("conv2d")
    schedule = sketch.schedule(sketch.sample(1, seed=3)[0])
    replayed = _tvm.Schedule(sketch.task.module)
    _tvm.Trace.apply_json_to_schedule(schedule.trace.as_json(), replayed)
    _tvm.ir.assert_structural_equal(replayed.mod, schedule.mod)


@pytest.mark.parametrize("name", ["softmax", "chain", "max_pool"])
def test_other_operators_are_declined(name: str) -> None:
    task = make_task(workloads.ALL[name](), AVX512, name=name)
    assert not any("most_accumulators" in str(sketch.trace) for sketch in sketches(task, space="own"))


@pytest.fixture(scope="module")
def pool() -> Iterator[MeasurePool]:
    with MeasurePool(resolve_target("cpu")) as pool:
        yield pool


ODD: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    **{
        f"dense {n}×{k}→{m}": (partial(op.dense, n, k, m), (1,))
        for n, k, m in ((1, 53, 113), (53, 7, 64), (37, 4352, 48))
    },
    **{
        f"product {n}×{k}×{m}": (partial(op.matmul, n, k, m), ())
        for n, k, m in (
            (113, 13, 53),
            (7, 1, 16),
            (197, 320, 113),
            (113, 256, 32),
            (1, 53, 197),
            (53, 1, 7),
        )
    },
    **{
        f"products {b}×{n}×{k}×{m}": (partial(op.batch_matmul, b, n, k, m), ())
        for b, n, k, m in ((5, 53, 113, 13), (3, 113, 1, 197))
    },
    "conv 13→48 at 53": (lambda: op.conv2d(13, 53, 48), (1,)),
    "conv 7→16 at 13, stride 2": (lambda: op.conv2d(7, 13, 16, stride=2), (1,)),
    "conv 3→32 7×7 at 29, stride 2": (lambda: op.conv2d(3, 29, 32, 7, stride=2), (1,)),
    "conv 5→16 at 11, dilation 2": (lambda: op.conv2d(5, 11, 16, dilation=2, padding=2), (1,)),
    "conv 12→48 at 7 in 3 groups": (lambda: op.grouped(12, 7, 48, 3), (1,)),
    "conv 12→29 1×1 at 7": (lambda: op.conv2d(12, 7, 29, 1), (1,)),
    "conv 13→20 1×1 at 14": (lambda: op.conv2d(13, 14, 20, 1), (1,)),
    "conv 1→4 at 1": (lambda: op.conv2d(1, 1, 4), (1,)),
    "conv1d 7→16 at 113": (lambda: op.conv1d(7, 113, 16), (1,)),
    "conv3d 3→16 at 5×7": (lambda: op.conv3d(3, 5, 7, 16), (1,)),
    **{name: (make, constants) for name, (make, constants) in CASES.items()},
}


@pytest.mark.parametrize("name", ODD)
def test_results_are_correct(name: str, pool: MeasurePool) -> None:
    make, constants = ODD[name]
    task = make_task(make(), resolve_target("cpu"), name=name, constants=constants)
    own_sketches = sketches(task, space="own")
    assert own_sketches
    candidates = [Candidate(s, tuple(p), 0.0, "random") for s in own_sketches for p in s.sample(2, seed=4).tolist()]
    for measurement in pool.measure(task, candidates):
        assert measurement.status is Status.OK, measurement.message
