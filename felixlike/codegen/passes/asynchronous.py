"""Copies into shared memory that threads do not wait for, in the software pipelines that ask for them.

    for k: A_shared[…] = A[…]        cp.async A_shared ← A for the first steps
           C += A_shared[…] · …  →   for k: cp.async A_shared ← A for a later step; wait for this step's; C += …

TVM knows one setting for a whole module (tirx.use_async_copy) and refuses to compile pipelines in which a vector is
gathered, or scattered, as MetaSchedule's may be. So the setting is made for modules with a marked loop, and the other
loops in these lose the note that their copies are asynchronous: those never are without the setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module
from felixlike.codegen.annotations import Asynchronous

_NOTE, _SETTING = "software_pipeline_async_stages", "tirx.use_async_copy"


def only_marked_are_asynchronous(module: Module) -> Module:
    """The IRModule, with the note on marked loops alone where there are some."""
    return _tvm.map_functions(module, _without_notes) if _has_marked(module) else module


def _without_notes(func: Any) -> Any:
    return _tvm.structural_map(func, (_tvm.tirx.For, _as_marked))


def _as_marked(loop: Loop) -> Loop:
    if _NOTE not in loop.annotations or Asynchronous.on(loop):
        return loop
    notes = {key: value for key, value in loop.annotations.items() if key != _NOTE}
    return _tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, notes)


def _has_marked(module: Module) -> bool:
    functions = [function for function in module.functions.values() if isinstance(function, _tvm.PrimFunc)]
    return any(Asynchronous.on(loop) for f in functions for loop in _tvm.found(f.body, _tvm.tirx.For))


@contextmanager
def asynchronous_copies(module: Module) -> Iterator[None]:
    """TVM compiles a module inside with asynchronous copies if one of its loops asks for them."""
    if not _has_marked(module):
        yield
        return
    context = _tvm.transform.PassContext
    now = context.current()
    with context(
        opt_level=now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=list(now.disabled_pass),
        instruments=list(now.instruments),
        config={**dict(now.config), _SETTING: True},
    ):
        yield
