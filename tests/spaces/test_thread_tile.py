"""Thread tiles: correct, exact formulas, within register limits, and compiled without spills by the CUDA compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import comes_back, equal_counts, equal_to_tvms, run, without_threads
from support.operators import OPERATORS

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.codegen import cuda_binary, nvrtc
from felixlike.codegen.cubin import kernels_of
from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.spaces import FITS_REGISTERS, own_space
from felixlike.spaces.gpu.thread_axes import multiple_of
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")
SMALL = [
    "matmul",
    "matmul_odd",
    "matvec",
    "dense_bias_relu",
    "batch_matmul",
    "conv1d",
    "conv2d_3x3",
    "conv2d_1x1",
    "conv2d_7x7_strided",
    "conv2d_dilated",
    "conv2d_odd",
    "conv2d_nhwc",
    "conv2d_grouped",
    "grouped_nhwc",
    "depthwise_strided",
    "conv3d",
]


def _split_sum(rows: int = 8, columns: int = 12, *, relu: bool) -> Any:
    """Return a product whose reduction is worth splitting, with or without an epilogue."""
    return workloads.matmul(rows, 512, columns, relu=relu)


def _residual() -> Any:
    """Return ReLU of a 1×1 convolution plus its input."""
    x, w = te.placeholder((1, 16, 8, 8), name="X"), te.placeholder((16, 16, 1, 1), name="W")
    return te.create_prim_func([x, w, topi.nn.relu(topi.add(topi.nn.conv2d_nchw(x, w, 1, 0, 1), x))])


def _square() -> Any:
    """Return the product of a matrix with itself."""
    a = te.placeholder((32, 32), name="A")
    return te.create_prim_func([a, topi.matmul(a, a)])


@cache
def _sketches(name: str, *, small: bool = True) -> tuple[Sketch, ...]:
    make = {
        "split": lambda: _split_sum(relu=True),
        "split_alone": lambda: _split_sum(relu=False),
        "residual": _residual,
    }.get(name)
    return sketches(make() if make else OPERATORS[name](small_size=small), SM_90, space="own")


def _is_pipelined(sketch: Sketch) -> bool:
    return "felixlike.asynchronous" in sketch.trace_json()


def _is_split(sketch: Sketch) -> bool:
    return "RFactor" in sketch.trace_json()


@pytest.mark.parametrize("name", [*SMALL, "split", "split_alone", "residual"])
def test_results_are_correct(name: str) -> None:
    """Every sketch, including pipelined ones, agrees with float64 at a random point."""
    module = _sketches(name)[0].task.module
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-1, 1, [int(e) for e in p.shape]) for p in module["main"].params]
    truth = run(double_precision(module), arguments)[-1]
    single = [argument.astype("float32") for argument in arguments]
    for sketch in _sketches(name):
        for point in sketch.sample(2 if name.endswith("odd") else 1, seed=3).tolist():
            got = run(without_threads(sketch.schedule(point).mod), single)[-1]
            np.testing.assert_allclose(got, truth, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", [*SMALL, "split"])
def test_formulas_equal_brute_force_counts(name: str) -> None:
    for sketch in _sketches(name):
        assert sketch.is_symbolic, sketch.reason
        assert equal_counts(sketch, sketch.sample(2, seed=5)) > 50


@pytest.mark.parametrize("name", ["matmul", "matmul_odd", "matvec", "dense_bias_relu", "batch_matmul", "conv2d_1x1"])
def test_nests_and_features_equal_tvms(name: str) -> None:
    for sketch in _sketches(name, small=False):
        equal_to_tvms(sketch, sketch.sample(1, seed=7))


@pytest.mark.parametrize("name", ["matmul_odd", "batch_matmul", "conv2d_3x3", "matvec"])
def test_points_are_valid_exactly_where_they_are_accepted(name: str) -> None:
    accepted = refused = 0
    for sketch in _sketches(name, small=False):
        drawn = np.concatenate([sketch.sample(2, seed=1), sketch.sampler.any.draw(12, np.random.default_rng(2))])
        valid = sketch.valid(drawn)
        assert valid[:2].all()
        assert valid.tolist() == [sketch.accepts(point) for point in drawn.tolist()]
        accepted, refused = accepted + int(valid.sum()), refused + int((~valid).sum())
    assert accepted
    assert refused


@pytest.mark.parametrize(("dtype", "summed"), [("int8", "int32"), ("float64", "float64"), ("float16", "float32")])
def test_other_types_are_supported(dtype: str, summed: str) -> None:
    """Vectors have at most 16 bytes for every type, and copies of single bytes are correct but not asynchronous."""
    a, b = te.placeholder((16, 24), name="A", dtype=dtype), te.placeholder((20, 24), name="B", dtype=dtype)
    k = te.reduce_axis((0, 24), name="k")
    product = te.compute((16, 20), lambda i, j: te.sum(a[i, k].astype(summed) * b[j, k].astype(summed), axis=k), "C")
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((16, 24), (20, 24)))
    own_sketches = sketches(te.create_prim_func([a, b, product]), SM_90, space="own")
    assert len(own_sketches) == 3
    for sketch in own_sketches:
        (point,) = sketch.sample(1, seed=4).tolist()
        got = run(without_threads(sketch.schedule(point).mod), [left, right, np.zeros((16, 20), summed)])[-1]
        assert (got == left.astype(summed) @ right.astype(summed).T).all()


def test_constraints_have_reasons() -> None:
    plain = _sketches("conv2d_3x3", small=False)[-1]
    reasons = [limit.reason for limit in plain.constraints]
    for words in ("64 accumulators", "65536 registers", "3072 steps", "warp"):
        assert any(words in reason for reason in reasons), words
    assert FITS_REGISTERS in [postprocessor.name for postprocessor in plain.postprocessors]


def test_traces_and_points_survive_a_round_trip() -> None:
    task = make_task(OPERATORS["dense_bias_relu"](small_size=True), SM_90, name="dense")
    for trace in own_space(task).traces:
        schedule = _tvm.Schedule(task.module)
        trace.apply_to_schedule(schedule, remove_postproc=False)
        comes_back(schedule, task.module)
    for sketch in _sketches("dense_bias_relu"):
        for point in sketch.sample(2, seed=2).tolist():
            assert sketch.point(sketch.schedule(point).trace) == tuple(point)


def test_kinds_of_sketches_of_a_task() -> None:
    """Enough steps give pipelined sketches, and few outputs with long reductions give split ones."""

    def kinds_of_sketches(name: str) -> list[tuple[bool, bool]]:
        return sorted((_is_pipelined(s), _is_split(s)) for s in _sketches(name, small=False))

    plain_only, pipelined = [(False, False)], [(True, False)] * 2
    assert kinds_of_sketches("matmul") == [*plain_only, (False, True), *pipelined, (True, True)]
    assert kinds_of_sketches("depthwise") == plain_only  # the reduction covers only windows, which are not split
    assert kinds_of_sketches("conv2d_3x3") == kinds_of_sketches("matmul")
    # A reduction of 64 steps is too short to split.
    assert kinds_of_sketches("batch_matmul") == [*plain_only, *pipelined]


def test_large_outputs_are_not_split() -> None:
    own_sketches = sketches(workloads.matmul(2048, 1024, 2048), SM_90, space="own")
    assert own_sketches
    assert not any(map(_is_split, own_sketches))


@pytest.mark.parametrize(
    "func",
    [
        workloads.softmax(),
        workloads.max_pool(),
        _square(),
        te.create_prim_func(
            [
                a := te.placeholder((8, 8), name="A"),
                b := te.placeholder((8, 8), name="B"),
                topi.nn.softmax(topi.matmul(a, b)),
            ]
        ),
    ],
)
def test_other_operators_are_declined(func: Any) -> None:
    assert not any("felixlike.thread_" in s.trace_json() for s in sketches(func, SM_90, space="own"))


@pytest.mark.parametrize(("extent", "multiple"), [(3, 1), (64, 1), (77, 4), (113, 8), (53, 4), (197, 4), (1009, 16)])
def test_axes_are_padded_to_useful_multiples(extent: int, multiple: int) -> None:
    assert multiple_of(extent) == multiple


@pytest.fixture
def compiler() -> None:
    if nvrtc.library() is None:
        pytest.skip('NVRTC is not on this machine: pip install "felixlike[cuda]"')


def _kernels(sketch: Sketch, values: dict[str, int]) -> Any:
    point = [values[v.name] for v in sketch.variables]
    assert sketch.valid(np.array([point])).all()
    return kernels_of(cuda_binary(sketch.schedule(point).mod, SM_90), "sm_90")


GOOD = {
    # 128 × 128 outputs per block of 256 threads, 64 each
    "matmul": {"i.0": 4, "i.1": 2, "i.2": 16, "j.0": 4, "j.1": 2, "j.2": 16, "k.0": 64, "k.1": 2},
    "dense_bias_relu": {"i.0": 1, "i.1": 2, "i.2": 16, "j.0": 24, "j.1": 2, "j.2": 16, "k.0": 96, "k.1": 2},
    "batch_matmul": {"b.0": 12, "b.1": 1, "i.0": 2, "i.1": 1, "i.2": 16, "j.0": 2, "j.1": 1, "j.2": 16, "k.0": 8},
    "conv2d_3x3": {"ff.0": 2, "ff.1": 2, "ff.2": 4, "yy.0": 7, "yy.1": 8, "yy.2": 1, "xx.0": 2, "xx.1": 1, "xx.2": 7},
    "conv2d_nhwc": {"yy.0": 7, "yy.1": 8, "yy.2": 1, "xx.0": 7, "xx.1": 1, "xx.2": 2, "ff.0": 1, "ff.1": 1, "ff.2": 16},
}
REST = {
    "batch_matmul": {"k.1": 2},
    "conv2d_3x3": {"rc.0": 32, "rc.1": 2},
    "conv2d_nhwc": {"rc.0": 16, "rc.1": 1},
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.usefixtures("compiler")
def test_good_points_do_not_spill(name: str) -> None:
    """Tiles like those of hand-written kernels do not spill with any number of pipeline stages."""
    compared = 0
    for sketch in _sketches(name, small=False):
        if _is_split(sketch):
            continue
        fetched = {v.name: v.choices[0] for v in sketch.variables if v.name.startswith("fetch")}
        (kernel,) = _kernels(sketch, GOOD[name] | REST.get(name, {}) | fetched)
        assert kernel.local_bytes == 0, kernel
        assert kernel.registers <= 168, kernel
        compared += 1
    assert compared == 3


@pytest.mark.usefixtures("compiler")
def test_random_points_compile() -> None:
    for name in ("matmul_odd", "matvec"):
        for sketch in _sketches(name, small=False):
            (point,) = sketch.sample(1, seed=5).tolist()
            kernels = kernels_of(cuda_binary(sketch.schedule(point).mod, SM_90), "sm_90")
            assert len(kernels) == 1 + _is_split(sketch)


def test_older_gpus_copy_synchronously() -> None:
    """`cp.async` needs compute capability 8.0; the V100 and the Xavier NX have 7.0 and 7.2."""
    for name, expected in (("v100", False), ("xavier-nx", False), ("a10g", True)):
        tiles = sketches(workloads.matmul(2048, 1024, 2048), resolve_target(name), space="own")
        assert tiles
        assert any(map(_is_pipelined, tiles)) is expected


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_89"])
def test_tiles_compile_for_other_architectures(arch: str) -> None:
    if arch not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not compile for {arch}")
    tiles = sketches(workloads.matmul(512, 512, 512), resolve_target(_ARCHITECTURES[arch]), space="own")
    for sketch in {_is_pipelined(tile): tile for tile in tiles}.values():
        (point,) = sketch.sample(1, seed=5).tolist()
        assert kernels_of(cuda_binary(sketch.schedule(point).mod, sketch.task.target), arch)


_ARCHITECTURES: dict[str, Any] = {
    "sm_75": _tvm.Target({**resolve_target("sm_90").export(), "arch": "sm_75"}),
    "sm_86": "a10g",
    "sm_89": "rtx-4090",
}
