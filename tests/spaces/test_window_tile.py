"""The rule `window_tiles`: correct for odd sizes and several decisions, golden programs, exact formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schedules import as_module, comes_back, decided_anew, equal_counts, equal_to_tvms, run

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.frontend.task import make_task
from felixlike.hardware import target_device
from felixlike.measure.check.reference import double_precision
from felixlike.spaces.cpu.window_tile import window_tiles
from felixlike.symbolic import Sketch, sketches

_AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _pool(
    shape: tuple[int, ...],
    kind: str = "max",
    kernel: int = 3,
    stride: int = 2,
    *,
    dilation: int = 1,
    padding: int = 1,
    ceil: bool = False,
    layout: str = "NHWC",
    counts_padding: bool = True,
    after: Callable[[Any], Any] | None = None,
) -> Any:
    x = te.placeholder(shape, name="x")
    rank = len(shape) - 2
    pool = topi.nn.pool2d if rank == 2 else topi.nn.pool3d
    y = pool(
        x,
        (kernel,) * rank,
        (stride,) * rank,
        (dilation,) * rank,
        (padding,) * (2 * rank),
        kind,
        ceil,
        layout,
        counts_padding,
    )
    return te.create_prim_func([x, y if after is None else after(y)])


def _max_of_zero_padded() -> Any:
    """Return the maxima of windows of negative numbers that are padded with zeros, which are then the largest."""
    x = te.placeholder((1, 8, 8, 16), name="x")
    padded = topi.nn.pad(x, (0, 1, 1, 0), (0, 1, 1, 0), 0.0)
    rows, columns = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))
    y = te.compute(
        (1, 8, 8, 16), lambda n, h, w, c: te.max(padded[n, h + rows, w + columns, c], axis=[rows, columns]), name="y"
    )
    return te.create_prim_func([x, y])


_CASES: dict[str, Callable[[], Any]] = {
    "stride 2": lambda: _pool((1, 14, 14, 32)),
    "odd sizes": lambda: _pool((2, 15, 13, 24)),
    "vectors of four": lambda: _pool((1, 9, 9, 12)),
    "one column": lambda: _pool((1, 9, 3, 16), padding=0),
    "one line": lambda: _pool((1, 1, 30, 16)),
    "ceil mode": lambda: _pool((1, 14, 14, 16), padding=0, ceil=True),
    "dilation": lambda: _pool((1, 12, 12, 16), stride=1, dilation=2),
    "large window": lambda: _pool((1, 12, 12, 16), kernel=9, stride=1, padding=4),
    "mean": lambda: _pool((1, 14, 14, 16), "avg", stride=1),
    "mean without padding": lambda: _pool((1, 14, 14, 16), "avg", counts_padding=False),
    "channels first": lambda: _pool((1, 5, 12, 16), stride=1, layout="NCHW"),
    "three dimensions": lambda: _pool((1, 6, 6, 6, 16), layout="NDHWC"),
    "epilogue": lambda: _pool((1, 14, 14, 16), after=lambda y: topi.nn.relu(topi.add(y, y))),
    "padded with zeros": _max_of_zero_padded,
}


def _scheduled(module: Any) -> list[Any]:
    return window_tiles(_tvm.Schedule(module), target_device(_AVX512))


@pytest.mark.parametrize("name", _CASES)
def test_windows_of_any_kind(name: str) -> None:
    """The schedule can be restored from its stored trace, and is correct with two other sets of decisions."""
    module = as_module(_CASES[name]())
    (schedule,) = _scheduled(module)
    random = np.random.default_rng(0)
    x, y = ([int(extent) for extent in parameter.shape] for parameter in module["main"].params)
    arguments = [random.uniform(-3, -1, x), np.full(y, np.nan)]
    truth = run(double_precision(module), arguments)[-1]
    single = [argument.astype("float32") for argument in arguments]
    comes_back(schedule, module)
    for variant in decided_anew(schedule, module):
        np.testing.assert_allclose(run(variant, single)[-1], truth, rtol=1e-6)


@pytest.mark.parametrize(
    "func",
    [
        _pool((1, 16, 14, 14), layout="NCHW"),
        _pool((1, 9, 9, 13)),
        te.create_prim_func([(x := te.placeholder((64, 64), name="x")), topi.sum(x, axis=1)]),
        te.create_prim_func([(x := te.placeholder((64, 64), name="x")), topi.nn.relu(x)]),
    ],
    ids=["no contiguous axis", "13 columns", "rows", "map"],
)
def test_other_functions_are_declined(func: Any) -> None:
    assert _scheduled(as_module(func)) == []


def _sketch(name: str) -> Sketch:
    (sketch,) = sketches(make_task(_CASES[name](), _AVX512, name=name), space="own")
    assert sketch.is_symbolic, sketch.reason
    return sketch


_SYMBOLIC = ("stride 2", "mean", "mean without padding", "channels first", "epilogue")


def test_cores_share_the_rows_of_a_single_line() -> None:
    sketch = _sketch("one line")
    extents = [
        int(loop.extent)
        for point in sketch.sample(8, seed=3).tolist()
        for loop in _tvm.found(sketch.schedule(point).mod["main"].body, _tvm.tirx.For)
        if loop.kind == _tvm.tirx.ForKind.PARALLEL
    ]
    assert max(extents) > 1


def test_program(golden: Callable[[str, str], None]) -> None:
    golden("programs/own_max_pool", str(_sketch("stride 2").program))


@pytest.mark.parametrize("name", _SYMBOLIC)
def test_formulas_equal_counts_and_tvms_features(name: str) -> None:
    sketch = _sketch(name)
    points = sketch.sample(2, seed=5)
    assert equal_counts(sketch, points) > 0
    equal_to_tvms(sketch, points)
