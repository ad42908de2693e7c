"""Share helpers of schedule rule tests: run schedules, replay them, compare formulas with counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import oracles
from support.tvm_view import tvm_view

from felixlike import _tvm, codegen
from felixlike.features import NAMES, formulas
from felixlike.hardware import quickly_compiled
from felixlike.measure.check.reference import double_precision
from felixlike.symbolic import Sketch, concrete_nest

QUICK = quickly_compiled(_tvm.Target("llvm"))
"""A target for tests of what schedules compute, and not of code: LLVM does less, and each kernel runs a few times."""


def as_module(func: Any) -> Any:
    """Return a task's module.

    Keep a reference while its schedules live: TVM changes a module in place if only a schedule refers to it.
    """
    return _tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def run(module: Any, arguments: list[Any]) -> list[Any]:
    """Run the function and return all its arguments, which must fit it."""
    tensors = [_tvm.runtime.tensor(argument) for argument in arguments]
    codegen.compile_primfuncs(module, QUICK, checks_arguments=False).jit()["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def comes_back(sketch: Any, module: Any) -> None:
    """Check that replaying the stored trace on the module reproduces the schedule."""
    stored = _tvm.Schedule(module)
    written = _tvm.ir.save_json(sketch.trace.as_json())
    _tvm.Trace.apply_json_to_schedule(_tvm.ir.load_json(written), stored)
    _tvm.ir.assert_structural_equal(stored.mod, sketch.mod)
    assert _tvm.structural_hash(stored.mod) == _tvm.structural_hash(sketch.mod)


def decided_anew(sketch: Any, module: Any) -> list[Any]:
    """Replay a schedule's trace with two other sets of decisions and return the modules."""
    modules = []
    for seed in (1, 2):
        replayed = _tvm.Schedule(module, seed=seed)
        _tvm.Trace(sketch.trace.insts, {}).apply_to_schedule(replayed, remove_postproc=False)
        modules.append(replayed.mod)
    return modules


def equal_results(schedule: Any, module: Any) -> None:
    """Check that a schedule's trace comes back, and that other decisions compute what the module does in float64."""
    comes_back(schedule, module)
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.shape] for parameter in module["main"].params]
    arguments = [*(rng.uniform(-1, 1, shape) for shape in shapes[:-1]), np.full(shapes[-1], np.nan)]
    *_, truth = run(double_precision(module), arguments)
    for variant in decided_anew(schedule, module):
        *_, got = run(variant, [argument.astype("float32") for argument in arguments])
        np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max())


def equal_nests(sketch: Sketch, points: Any) -> None:
    """Check that the symbolic program is TVM's loop nest at points."""
    names = [variable.name for variable in sketch.variables]
    for point in points.tolist():
        nest = oracles.tvm_nest(sketch.schedule(point))
        assert concrete_nest(sketch.program, dict(zip(names, point, strict=True))) == nest, point


def equal_counts(sketch: Sketch, points: Any) -> int:
    """Check that formulas equal the counts in every buffer store and column, and 0 for inlined stores.

    Return the number of compared stores.
    """
    store_formulas = formulas(sketch, oracles.SMALL_CACHES)
    checked = 0
    for point, rows in zip(points.tolist(), store_formulas.evaluate(points), strict=True):
        assert sketch.accepts(point)
        counted = oracles.count(sketch, tuple(point), oracles.SMALL_CACHES)
        inlined = set(store_formulas.stores) - set(counted)
        assert set(counted) <= set(store_formulas.stores)
        assert not any(rows[store_formulas.stores.index(block)].any() for block in inlined)
        for block, columns in counted.items():
            computed = dict(zip(NAMES, rows[store_formulas.stores.index(block)], strict=True))
            for column, value in columns.items():
                assert np.isclose(computed[column], value, rtol=1e-9), (point, block, column, computed[column], value)
                checked += 1
    return checked


def equal_to_tvms(sketch: Sketch, points: Any) -> None:
    """Check that loop nests equal those of TVM's schedules, and known features those of TVM's extractor."""
    names = [v.name for v in sketch.variables]
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        schedule = sketch.schedule(point)
        assert concrete_nest(sketch.program, dict(zip(names, point, strict=True))) == oracles.tvm_nest(schedule), point
        theirs = oracles.tvm_features(sketch, schedule)
        known = ~np.isnan(ours)
        assert known.mean() > 0.75
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=1e-9)


def without_threads(module: Any, *, twice: bool = False) -> Any:
    """Convert a GPU function so that a CPU runs it: every thread in turn runs the whole block.

    With `twice` each thread runs a second time, after other threads have written shared memory. Software pipelines
    stay, without the annotation or statements for asynchronous copies.
    """

    def serial(loop: Any) -> Any:
        dropped = ("software_pipeline_async_stages", "pragma_unroll_explicit")
        notes = {key: value for key, value in loop.annotations.items() if key not in dropped}
        bound = loop.thread_binding is not None
        kind = _tvm.tirx.ForKind.SERIAL if bound else loop.kind
        extent, body = loop.extent, loop.body
        if twice and bound and str(loop.thread_binding.thread_tag).startswith("threadIdx"):
            thread = _tvm.tirx.floormod(loop.loop_var, extent)
            extent, body = 2 * extent, _tvm.substituted(body, {loop.loop_var: thread})
        return _tvm.tirx.For(loop.loop_var, loop.min, extent, kind, body, None, notes)

    def bare(note: Any) -> Any:
        return note.body if str(note.attr_key).startswith(("async_", "pragma_")) else note

    def changed(func: Any) -> Any:
        func = _tvm.structural_map(func, (_tvm.tirx.For, serial))
        return _tvm.structural_map(func, (_tvm.tirx.AttrStmt, bare))

    return _tvm.map_functions(module, changed)
