"""Sketches of the CUDA space agree with TVM. Scheduling needs no GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import workloads
from support import oracles
from support.operators import OPERATORS, grouped

from felixlike import _tvm, codegen
from felixlike.errors import InvalidSchedule
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic import Kind, Sketch, concrete_nest, sketches
from felixlike.symbolic.space import stored_sketch


@pytest.fixture(autouse=True)
def _sources_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the limit on source length, since these tests compare with TVM's limits only."""
    monkeypatch.setattr("felixlike.symbolic.replay.source_limits.LONGEST_SOURCE", 10**12)


NAMES = (
    "matmul_relu",
    "matmul_large_primes",
    "conv2d_strided",
    "depthwise",
    "softmax",
    "row_sum",
    "max_pool",
    "avg_pool",
    "chain",
)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_loop_nests_equal_tvms(name: str, target: str) -> None:
    """At random valid points, TVM accepts the point and lowers it to the loops of the symbolic program."""
    compared = 0
    for sketch in sketches(workloads.ALL[name](), target):
        if not sketch.is_symbolic:
            continue
        names = [v.name for v in sketch.variables]
        for point in sketch.sample(6, seed=3).tolist():
            ours = concrete_nest(sketch.program, dict(zip(names, point, strict=True)))
            assert ours == oracles.tvm_nest(sketch.schedule(point)), (sketch.index, point)
            compared += 1
    assert compared


def test_blocks_move_under_the_outer_part_of_a_shared_loop() -> None:
    """The sum of a mean is under the outer part of a loop that threads split unevenly: 12 = 3·4 = 1·32 − 20."""
    pooled = sketches(workloads.average(size=24), "sm_90")[1]
    names = [v.name for v in pooled.variables]
    for threads, steps in ((4, 4), (8, 8), (32, 12)):
        nests = dict(concrete_nest(pooled.program, dict(zip(names, (threads, 0), strict=True))))
        assert [loop.extent for loop in nests["pool_sum"] if loop.kind == "serial"] == [steps]
        assert nests["pool_avg"][-1].extent == threads


@pytest.fixture(scope="module")
def product() -> tuple[Sketch, ...]:
    return sketches(workloads.matmul(256, 192, 320), "sm_90")


def test_block_limits_equal_tvms(product: tuple[Sketch, ...]) -> None:
    """Points drawn by TVM are valid if and only if TVM's VerifyGPUCode accepts them."""
    accepted = refused = 0
    for sketch in product:
        points = sketch.sampler.by_tvm(40, np.random.default_rng(0))
        for point, valid in zip(points.tolist(), sketch.valid(points), strict=True):
            try:
                sketch.schedule(point)
            except InvalidSchedule:
                refused += 1
                assert not valid, (sketch.index, point)
            else:
                accepted += 1
                assert valid, (sketch.index, point)
    assert accepted
    assert refused


def test_float16_groups_are_copied_in_vectors_that_tvm_accepts() -> None:
    """TVM rejects vectors of eight float16 across rows that they do not divide, whose indices are too large."""
    te = _tvm.te
    a, b = (te.placeholder((64, 64), name=name, dtype="float16") for name in "AB")
    k = te.reduce_axis((0, 64), name="k")
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    for sketch in sketches(te.create_prim_func([a, b, _tvm.topi.exp(product)]), "sm_90"):
        assert all(sketch.accepts(point) for point in sketch.sample(8, seed=1).tolist())


def test_constraints_have_reasons(product: tuple[Sketch, ...]) -> None:
    reasons = [c.reason for c in product[1].constraints]
    for words in ("1024 threads", "warp", "49152 bytes", "pipeline"):
        assert any(words in reason for reason in reasons), words


def test_fetch_variables(product: tuple[Sketch, ...]) -> None:
    fetches = [v for v in product[0].variables if v.kind is Kind.FETCH]
    assert [v.name for v in fetches] == ["fetch.0", "fetch.1"]
    assert fetches[0].choices == (1, 2, 3, 4)


def test_points_and_traces_convert_both_ways() -> None:
    for sketch in sketches(workloads.softmax(), "sm_90"):
        for point in sketch.sample(4, seed=2).tolist():
            assert sketch.point(sketch.schedule(point).trace) == tuple(point)


def test_programs(product: tuple[Sketch, ...], golden: Callable[[str, str], None]) -> None:
    golden("programs/cuda_matmul_pipelined", str(product[1].program))
    golden("programs/cuda_softmax_across_threads", str(sketches(workloads.softmax(), "sm_90")[3].program))


@pytest.mark.skipif(not codegen.cuda_toolchain(), reason="neither NVRTC (felixlike[cuda]) nor nvcc is installed")
@pytest.mark.parametrize("name", ["matmul_relu", "conv2d", "softmax"])
def test_schedules_compile(name: str) -> None:
    """Valid points compile to machine code for sm_90."""
    for sketch in sketches(workloads.ALL[name](), "sm_90"):
        module = sketch.schedule(sketch.sample(1, seed=5)[0]).mod
        assert len(codegen.cuda_binary(module, sketch.task.target)) > 1000


def test_groups_in_shared_memory_are_symbolic() -> None:
    """Loop nests equal TVM's, and TVM accepts every sampled point."""
    for sketch in sketches(workloads.ALL["conv2d_grouped"](), "sm_90"):
        assert any(buffer.grouped and buffer.scope == "shared" for buffer in sketch.program.buffers)
        names = [v.name for v in sketch.variables]
        for point in sketch.sample(6, seed=2).tolist():
            nest = concrete_nest(sketch.program, dict(zip(names, point, strict=True)))
            assert nest == oracles.tvm_nest(sketch.schedule(point)), point


@pytest.mark.parametrize(("channels", "size", "groups"), [(96, 10, 4), (192, 7, 8)])
def test_groups_of_many_channels_are_symbolic(channels: int, size: int, groups: int) -> None:
    """Such loops have so many splits that only some are evaluated for each block size."""
    for sketch in sketches(grouped(channels, size, channels, groups), "sm_90"):
        assert sketch.is_symbolic, sketch.reason
        names = [v.name for v in sketch.variables]
        for point in sketch.sample(8, seed=4).tolist():
            nest = concrete_nest(sketch.program, dict(zip(names, point, strict=True)))
            assert nest == oracles.tvm_nest(sketch.schedule(point)), point


def test_groups_use_no_more_memory_than_in_tvm() -> None:
    """TVM accepts these tiles of several groups."""
    sketch = sketches(OPERATORS["conv2d_grouped"](), "sm_90")[0]
    points = [
        [1, 1, 1, 1, 1, 2, 2, 1, 4, 4, 2, 1, 2, 1, 7, 1, 1, 28, 1, 1, 8, 1, 2, 3, 1, 1, 1, 1, 3, 1, 4, 512],
        [1, 1, 1, 1, 1, 1, 4, 4, 2, 2, 7, 2, 1, 1, 2, 1, 2, 14, 1, 1, 2, 2, 4, 1, 1, 3, 3, 1, 1, 2, 2, 128],
    ]
    assert all(sketch.accepts(point) for point in points)
    assert sketch.valid(np.array(points)).all()


def test_stored_traces_find_their_postprocessors() -> None:
    """The postprocessors of stored traces are found for both spaces and several kinds of operators."""
    for func in (workloads.matmul(), workloads.chain(30, 52)):
        task = make_task(func, resolve_target("sm_90"), name="stored")
        for space in ("own", "default"):
            for sketch in sketches(task, space=space):
                stored = stored_sketch(task, sketch.trace_json())
                assert stored is not None
                names = [[p.name for p in s.postprocessors] for s in (sketch, stored)]
                assert names[0] == names[1]


def test_the_best_space_combines_both_spaces() -> None:
    task = make_task(workloads.matmul(), resolve_target("sm_90"), name="both")
    own_keys, default_keys = ([s.key for s in sketches(task, space=space)] for space in ("own", "default"))
    assert own_keys
    assert [s.key for s in sketches(task, space="best")] == own_keys + default_keys
