"""Split a fused Relax module into tasks, one for each structurally different PrimFunc that is called.

MetaSchedule's extraction is not used: its order is that of a hash map, and the names it chooses may change.
"""

from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from felixlike import _tvm
from felixlike.frontend.buffers import buffers_of
from felixlike.frontend.constants import constant_arguments
from felixlike.frontend.task import Task, make_task


def extract(
    module: Any,
    target: Any,
    layers: Mapping[str, tuple[str, ...]] | None = None,
    *,
    names: Container[str] | None = None,
) -> tuple[tuple[Task, ...], Mapping[str, tuple[str, ...]]]:
    """Return the tasks of a module, and the names of each task's functions by its key.

    layers: what the call sites of each function compute, see `layers.layers_of`.  names: names of the functions that
    may be tasks, None for all.

    Tasks are sorted by descending weight × flops, then by name. A task has the name of the first called function that
    it stands for, which is unique in the module and occurs in its text. Its weight is the number of call sites. A
    PrimFunc without calls is not a task.
    """
    calls = _call_counts(module)
    constants = constant_arguments(module)
    task_of: dict[str, Task] = {}
    functions: dict[str, tuple[str, ...]] = {}
    weights: dict[str, int] = {}
    for name, count in calls.items():
        if names is not None and name not in names:
            continue
        buffers_of(module[name], where=name)
        task = make_task(module[name], target, name=name, constants=constants[name])
        task_of.setdefault(task.key, task)
        functions[task.key] = (*functions.get(task.key, ()), name)
        weights[task.key] = weights.get(task.key, 0) + count
    known = layers or {}
    tasks = [
        replace(
            task,
            weight=float(weights[key]),
            layers=tuple(text for name in functions[key] for text in known.get(name, ()) if text),
        )
        for key, task in task_of.items()
    ]
    tasks.sort(key=lambda task: (-task.weight * task.flops, task.name))
    return tuple(tasks), MappingProxyType(functions)


def computes_nothing(module: Any) -> bool:
    """Return whether no function of a fused module calls anything but views.

    The outputs of such a module are inputs or constants.
    """
    views = [_tvm.ir.Op.get("relax.reshape")]
    calls: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op not in views:
            calls.append(node)

    for function in _relax_functions(module):
        _tvm.relax.analysis.post_order_visit(function, visit)
    return not calls


def _call_counts(module: Any) -> dict[str, int]:
    """Count the call sites of each PrimFunc that is called through call_tir, in order of first call."""
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    counts: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op == call_tir:
            name = str(node.args[0].name_hint)
            counts[name] = counts.get(name, 0) + 1

    for function in _relax_functions(module):
        _tvm.relax.analysis.post_order_visit(function, visit)
    return counts


def _relax_functions(module: Any) -> list[Any]:
    """Return the Relax functions, "main" first and the others by name."""
    names = sorted((str(var.name_hint) for var in module.get_global_vars()), key=lambda name: (name != "main", name))
    return [module[name] for name in names if isinstance(module[name], _tvm.relax.Function)]
