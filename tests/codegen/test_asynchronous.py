"""Asynchronous copies are generated for annotated loops, and for no other loop of the module."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.operators import matmul

from felixlike import _tvm
from felixlike.codegen import compile_primfuncs
from felixlike.codegen.cuda import cuda_source
from felixlike.codegen.pipeline import lower
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches

GPU = resolve_target("sm_90")
_ANNOTATION = "software_pipeline_async_stages"


def _scheduled(space: str, *, annotated: bool, name: str) -> Any:
    """Return a pipelined product of a space at a valid point."""
    key = "felixlike.asynchronous"
    all_sketches = sketches(matmul(128, 128, 128), GPU, space=space)
    sketch = next(s for s in all_sketches if _ANNOTATION in s.trace_json() and (key in s.trace_json()) is annotated)
    points = sketch.sample(64, seed=0)
    (point,) = points[np.argsort(points[:, -1], kind="stable")[:1]].tolist()
    return sketch.schedule(point).mod["main"].with_attr("global_symbol", name)


def _annotated_loops(func: Any) -> int:
    return sum(_ANNOTATION in loop.annotations for loop in _tvm.found(func.body, _tvm.tirx.For))


def test_only_annotated_loops_copy_asynchronously() -> None:
    ours, theirs = _scheduled("own", annotated=True, name="ours"), _scheduled("default", annotated=False, name="theirs")
    unannotated = _tvm.IRModule({"theirs": theirs})
    assert _tvm.structural_equal(lower(unannotated, GPU), unannotated)
    assert "ptx_cp_async_legacy" not in cuda_source(compile_primfuncs(unannotated, GPU))
    both = lower(_tvm.IRModule({"ours": ours, "theirs": theirs}), GPU)
    assert [_annotated_loops(both[name]) for name in ("ours", "theirs")] == [1, 0]
    source = cuda_source(compile_primfuncs(both, GPU))
    kernels = source.split('extern "C"')
    copied = {
        name: sum("ptx_cp_async_legacy" in k for k in kernels if f" {name}_kernel(" in k) for name in ("ours", "theirs")
    }
    assert copied == {"ours": 1, "theirs": 0}


def test_pass_options_of_the_caller_are_kept() -> None:
    ours = _tvm.IRModule({"main": _scheduled("own", annotated=True, name="main")})
    with _tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        source = cuda_source(compile_primfuncs(ours, GPU))
    assert "cse_v" not in source
    assert "ptx_cp_async_legacy" in source
    assert "tirx.use_async_copy" not in _tvm.transform.PassContext.current().config
