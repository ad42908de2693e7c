"""Masks of whole rows, as in attention, in GPU kernels: correct, exact formulas, and accepted by the CUDA compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from schedules import equal_counts, run, without_threads

from felixlike._tvm import te, tirx, topi
from felixlike.codegen import cuda_binary, kernels_of, nvrtc
from felixlike.hardware import resolve_target
from felixlike.measure.check.reference import double_precision
from felixlike.symbolic import Sketch, sketches

SM_90 = resolve_target("sm_90")
ROWS, COLUMNS = 24, 32


def _masked(kind: str, *, rows: bool = True) -> Any:
    """Return a function whose output is zero where a row or an element is masked."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    mask = te.placeholder((ROWS, 1 if rows else COLUMNS), name="mask")
    if kind == "product":
        weight, k = te.placeholder((COLUMNS, COLUMNS), name="w"), te.reduce_axis((0, COLUMNS), name="k")
        computed = te.compute(x.shape, lambda i, j: te.sum(x[i, k] * weight[k, j], axis=k), name="product")
    else:
        weight, computed = None, topi.nn.softmax(x) if kind == "rows" else topi.exp(x)
    zero = tirx.const(0.0, "float32")
    value = te.compute(
        x.shape, lambda i, j: tirx.Select(mask[i, 0 if rows else j] > zero, computed[i, j], zero), name="masked"
    )
    return te.create_prim_func([x, mask, *([] if weight is None else [weight]), value])


def _sketches(kind: str, *, rows: bool = True) -> tuple[Sketch, ...]:
    return sketches(_masked(kind, rows=rows), SM_90, space="own")


@pytest.mark.parametrize("kind", ["rows", "product"])
def test_masked_rows_are_correct_and_compile(kind: str) -> None:
    own_sketches = _sketches(kind)
    assert own_sketches
    for sketch in own_sketches:
        assert sketch.is_symbolic, sketch.reason
        module = sketch.task.module
        rng = np.random.default_rng(0)
        arguments = [rng.uniform(-1, 1, [int(e) for e in p.shape]) for p in module["main"].params]
        truth = run(double_precision(module), arguments)[-1]
        points = sketch.sample(2, seed=3)
        for point in points.tolist():
            scheduled = sketch.schedule(point).mod
            got = run(without_threads(scheduled), [argument.astype("float32") for argument in arguments])[-1]
            np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-5)
            if nvrtc.library() is not None:
                assert kernels_of(cuda_binary(scheduled, SM_90), "sm_90")
        assert equal_counts(sketch, points) > 50


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed: felixlike[cuda]")
@pytest.mark.parametrize("kind", ["elements", "rows", "product"])
def test_masked_elements_are_written_in_vectors(kind: str) -> None:
    own_sketches = _sketches(kind, rows=False)
    assert own_sketches
    for sketch in own_sketches:
        scheduled = sketch.schedule(sketch.sample(1, seed=3)[0]).mod
        assert "T.vectorized(4)" in scheduled.script()
        assert kernels_of(cuda_binary(scheduled, SM_90), "sm_90")


def test_elementwise_operators_with_masked_rows_are_declined() -> None:
    assert _sketches("elements") == ()
