"""Make copies into shared memory asynchronous in the software pipelines that are annotated so.

    for k: A_shared[…] = A[…]        cp.async A_shared ← A for the first steps
           C += A_shared[…] · …  →   for k: cp.async A_shared ← A for a later step; wait for this step's; C += …

TVM has one setting for a whole module (tirx.use_async_copy). With it, TVM refuses to compile pipelines that gather or
scatter a vector, as MetaSchedule's may do. The setting is therefore made only for modules with an annotated loop. The
module's other loops lose TVM's annotation for asynchronous copies, which has no effect without the setting anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module
from felixlike.codegen.annotations import Asynchronous

_ANNOTATION, _SETTING = "software_pipeline_async_stages", "tirx.use_async_copy"
"""TVM's annotation of loops with asynchronous copies, and its setting for a module."""


def only_marked_are_asynchronous(module: Module) -> Module:
    """Remove TVM's annotation from all loops without `Asynchronous`, if the IRModule has loops with it."""
    return _tvm.map_functions(module, _without_annotations) if _has_marked(module) else module


def _without_annotations(func: Any) -> Any:
    """Remove TVM's annotation from a function's loops without `Asynchronous`."""
    return _tvm.structural_map(func, (_tvm.tirx.For, _as_marked))


def _as_marked(loop: Loop) -> Loop:
    """Remove TVM's annotation from a loop without `Asynchronous`."""
    if _ANNOTATION not in loop.annotations or Asynchronous.on(loop):
        return loop
    annotations = {key: value for key, value in loop.annotations.items() if key != _ANNOTATION}
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, annotations)


def _has_marked(module: Module) -> bool:
    """Return whether a loop of a module is annotated with `Asynchronous`."""
    functions = [function for function in module.functions.values() if isinstance(function, _tvm.PrimFunc)]
    return any(Asynchronous.on(loop) for f in functions for loop in _tvm.found(f.body, _tvm.tirx.For))


@contextmanager
def asynchronous_copies(module: Module) -> Iterator[None]:
    """Make TVM compile with asynchronous copies inside the context, if a loop of the module is annotated so."""
    if not _has_marked(module):
        yield
        return
    context = _tvm.transform.PassContext
    current = context.current()
    with context(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=list(current.disabled_pass),
        instruments=list(current.instruments),
        config={**dict(current.config), _SETTING: True},
    ):
        yield
