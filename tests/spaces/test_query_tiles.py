"""The rule `query_tiles`: correct for padded sizes, masks and several decisions, exact formulas, two sketches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import as_module, comes_back, decided_anew, equal_counts, equal_to_tvms, run

from felixlike import _tvm
from felixlike._tvm import te
from felixlike.codegen.annotations import Keys, Softmax
from felixlike.codegen.masking import with_mask
from felixlike.frontend.rewrites.attention_kernel import Operands, Sizes, attention
from felixlike.frontend.task import make_task
from felixlike.hardware import target_device
from felixlike.measure.check.reference import double_precision
from felixlike.spaces.cpu.query_tiles import query_tiles
from felixlike.symbolic import Sketch, sketches

_AVX2 = _tvm.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})
_DEVICE = target_device(_AVX2)
_SIZES = {
    "whole tiles": (2, 3, 16, 12, 8, 6),
    "padded": (1, 2, 21, 13, 8, 11),
    "one head": (1, 1, 40, 24, 4, 4),
}


def _attention(name: str, *, masked: bool = False, safe: bool = False, causal: bool = False) -> Any:
    """Return the PrimFunc of attention whose heads are in the middle of all tensors.

    masked: whether there is a mask of keys.  causal: whether that is one of positions instead.
    """
    batch, heads, queries, keys, depth, width = _SIZES[name]
    sizes = Sizes((batch, heads), queries, keys, depth, width, _DEVICE.unit)
    q, k, v = (
        te.placeholder((batch, rows, heads, columns), name=name)
        for name, rows, columns in (("q", queries, depth), ("k", keys, depth), ("v", keys, width))
    )
    mask = te.placeholder((batch, sizes.rows), name="mask")

    def read(tensor: Any, b: Sequence[Any], row: Any, element: Any) -> Any:
        return tensor[b[0], row, b[1], element]

    def hidden(_: Sequence[Any], j: Any, i: Any, score: Any) -> Any:
        return with_mask(j <= i, score)

    operands = Operands(
        query=lambda b, i, d: read(q, b, i, d),
        key=lambda b, j, d: read(k, b, j, d),
        value=lambda b, j, d: read(v, b, j, d),
        masked=hidden if causal else (lambda b, j, i, score: score + mask[b[0], j]) if masked else None,
        factor=depth**-0.5,
    )
    weighted = attention(sizes, operands, safe=safe)
    output = te.compute((batch, queries, heads, width), lambda b, i, h, d: weighted[b, h, d, i], name="output")
    return te.create_prim_func([q, k, v, *([mask] if masked else []), output])


def _schedules(module: Any) -> list[Any]:
    schedule = _tvm.Schedule(module)
    root = schedule.get_sblock("root")
    return query_tiles(schedule, root, _DEVICE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", _SIZES)
def test_tiles_of_queries(name: str, masked: bool) -> None:
    """Every schedule can be restored from its stored trace, and is correct with two other sets of decisions."""
    func = _attention(name, masked=masked, safe=masked)
    module = as_module(func)
    schedules = _schedules(module)
    assert len(schedules) == 2
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-2, 2, [int(extent) for extent in parameter.shape]) for parameter in func.params]
    if masked:
        arguments[3][0] = -math.inf  # rows without a score give 0
    arguments[-1][:] = np.nan
    truth = run(double_precision(module), arguments)[-1]
    assert np.isfinite(truth).all()
    assert not masked or not truth[0].any()
    single = [argument.astype("float32") for argument in arguments]
    for schedule in schedules:
        comes_back(schedule, module)
        for variant in decided_anew(schedule, module):
            np.testing.assert_allclose(run(variant, single)[-1], truth, rtol=1e-5, atol=1e-5)


def test_loops_over_keys_are_annotated_where_positions_hide_keys() -> None:
    for options, counts in (({"causal": True}, [5, 4]), ({"masked": True}, [0, 0]), ({}, [0, 0])):
        schedules = _schedules(as_module(_attention("padded", **options)))
        loops = [_tvm.found(one.mod["main"].body, _tvm.tirx.For) for one in schedules]
        assert [sum(map(Keys.on, each)) for each in loops] == counts


@pytest.mark.parametrize("safe", [False, True])
def test_loops_of_a_softmax_are_annotated_where_its_maxima_are_subtracted(safe: bool) -> None:
    """Both loops are: over maxima and over exponentials. Arguments of other exponentials may be above 0."""
    func = _attention("padded", masked=True, safe=safe)
    tirx = _tvm.tirx

    def of_minima(node: Any) -> Any:
        return tirx.Min(node.a, node.b)

    def negative(node: Any) -> Any:
        return node if isinstance(node.b, tirx.IntImm) else node.b - node.a

    def loops(func: Any) -> list[int]:
        found = [_tvm.found(one.mod["main"].body, tirx.For) for one in _schedules(as_module(func))]
        return [sum(map(Softmax.on, each)) for each in found]

    assert loops(func) == [2, 2]
    assert loops(_tvm.structural_map(func, (tirx.Max, of_minima))) == [0, 0]
    assert loops(_tvm.structural_map(func, (tirx.Sub, negative))) == [0, 0]


def test_causal_tiles_of_queries() -> None:
    """Sums that compute their first step in the loop are not shortened, and are correct too."""
    func = _attention("padded", causal=True)
    module = as_module(func)
    rng = np.random.default_rng(0)
    arguments = [rng.uniform(-2, 2, [int(extent) for extent in parameter.shape]) for parameter in func.params]
    truth = run(double_precision(module), arguments)[-1]
    for schedule in _schedules(module):
        comes_back(schedule, module)
        for variant in decided_anew(schedule, module):
            result = run(variant, [argument.astype("float32") for argument in arguments])[-1]
            np.testing.assert_allclose(result, truth, rtol=1e-5, atol=1e-5)


def test_one_sketch_has_one_parallel_loop_and_one_has_three() -> None:
    loops = [
        [x for x in _tvm.found(one.mod["main"].body, _tvm.tirx.For) if x.kind == _tvm.tirx.ForKind.PARALLEL]
        for one in _schedules(as_module(_attention("padded")))
    ]
    assert [len(parallel) for parallel in loops] == [1, 3]


@pytest.mark.parametrize("func", [workloads.matmul(), workloads.conv2d(), workloads.chain()])
def test_other_functions_are_declined(func: Any) -> None:
    assert _schedules(as_module(func)) == []


def _sketches(name: str, *, causal: bool) -> tuple[Sketch, ...]:
    func = _attention(name, masked=not causal, causal=causal)
    own_sketches = sketches(make_task(func, _AVX2, name=name), space="own")
    assert len(own_sketches) == 2
    assert all(sketch.is_symbolic for sketch in own_sketches), [sketch.reason for sketch in own_sketches]
    return own_sketches


@pytest.mark.parametrize(("name", "causal"), [("whole tiles", False), ("padded", False), ("padded", True)])
def test_formulas_equal_counts_and_tvms_features(name: str, causal: bool) -> None:
    for sketch in _sketches(name, causal=causal):
        points = sketch.sample(2, seed=5)
        assert equal_counts(sketch, points) > 0
        equal_to_tvms(sketch, points)
