"""What all tests of schedule rules do: run schedules, replay them, compare formulas with counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import oracles
from support.tvm_view import tvm_view

from felixlike import _tvm, codegen
from felixlike.features import NAMES, formulas
from felixlike.symbolic import Sketch, concrete_nest


def as_module(func: Any) -> Any:
    """A task's module.  To be kept while its schedules live: TVM changes in place what only a schedule still holds."""
    return _tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def run(module: Any, arguments: list[Any]) -> list[Any]:
    """All arguments after the function has run."""
    tensors = [_tvm.runtime.tensor(argument) for argument in arguments]
    codegen.compile_primfuncs(module, _tvm.Target("llvm")).jit()["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def comes_back(sketch: Any, module: Any) -> None:
    """A schedule is what its stored trace makes of the module."""
    stored = _tvm.Schedule(module)
    written = _tvm.ir.save_json(sketch.trace.as_json())
    _tvm.Trace.apply_json_to_schedule(_tvm.ir.load_json(written), stored)
    _tvm.ir.assert_structural_equal(stored.mod, sketch.mod)
    assert _tvm.structural_hash(stored.mod) == _tvm.structural_hash(sketch.mod)


def decided_anew(sketch: Any, module: Any) -> list[Any]:
    """The modules that a schedule's trace makes with two other sets of decisions."""
    found = []
    for seed in (1, 2):
        replayed = _tvm.Schedule(module, seed=seed)
        _tvm.Trace(sketch.trace.insts, {}).apply_to_schedule(replayed, remove_postproc=False)
        found.append(replayed.mod)
    return found


def equal_counts(sketch: Sketch, points: Any) -> int:
    """Formulas are what is counted in every store and column, 0 where nothing is stored; how many were compared."""
    found = formulas(sketch, oracles.SMALL_CACHES)
    checked = 0
    for point, rows in zip(points.tolist(), found.evaluate(points), strict=True):
        assert sketch.accepts(point)
        counted = oracles.count(sketch, tuple(point), oracles.SMALL_CACHES)
        inlined = set(found.stores) - set(counted)
        assert set(counted) <= set(found.stores)
        assert not any(rows[found.stores.index(block)].any() for block in inlined)
        for block, columns in counted.items():
            ours = dict(zip(NAMES, rows[found.stores.index(block)], strict=True))
            for column, value in columns.items():
                assert np.isclose(ours[column], value, rtol=1e-9), (point, block, column, ours[column], value)
                checked += 1
    return checked


def equal_to_tvms(sketch: Sketch, points: Any) -> None:
    """Loop nests are those of TVM's schedules, and features, where they are known, those of its extractor."""
    names = [v.name for v in sketch.variables]
    for point, ours in zip(points.tolist(), tvm_view(formulas(sketch), points), strict=True):
        schedule = sketch.schedule(point)
        assert concrete_nest(sketch.program, dict(zip(names, point, strict=True))) == oracles.tvm_nest(schedule), point
        theirs = oracles.tvm_features(sketch, schedule)
        known = ~np.isnan(ours)
        assert known.mean() > 0.75
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=1e-9)


def without_threads(module: Any, *, twice: bool = False) -> Any:
    """A GPU's function as a CPU can run it, if slowly: every thread in turn does all that its block shares.

    twice: each thread runs a second time, when what others left for it in shared memory is there.
    Software pipelines stay, without their note, or the statements, that copies are asynchronous."""

    def serial(loop: Any) -> Any:
        dropped = ("software_pipeline_async_stages", "pragma_unroll_explicit")
        notes = {key: value for key, value in loop.annotations.items() if key not in dropped}
        bound = loop.thread_binding is not None
        kind = _tvm.tirx.ForKind.SERIAL if bound else loop.kind
        extent, body = loop.extent, loop.body
        if twice and bound and str(loop.thread_binding.thread_tag).startswith("threadIdx"):
            own = _tvm.tirx.floormod(loop.loop_var, extent)
            extent, body = 2 * extent, _tvm.substituted(body, {loop.loop_var: own})
        return _tvm.tirx.For(loop.loop_var, loop.min, extent, kind, body, None, notes)

    def bare(note: Any) -> Any:
        return note.body if str(note.attr_key).startswith(("async_", "pragma_")) else note

    def changed(func: Any) -> Any:
        func = _tvm.structural_map(func, (_tvm.tirx.For, serial))
        return _tvm.structural_map(func, (_tvm.tirx.AttrStmt, bare))

    return _tvm.map_functions(module, changed)
