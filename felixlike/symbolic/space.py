"""Generate all sketches of a task from one design space or from both."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidModel
from felixlike.frontend.buffers import buffers_of
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import kind_of as target_kind
from felixlike.hardware import resolve_target
from felixlike.spaces import DesignSpace, default_space, own_space
from felixlike.symbolic.replay.sketch import Sketch

_HOW = "give one of felixlike.extract_tasks(model, shapes), or a PrimFunc: of an IRModule, module[name]"


class SpaceName(StrEnum):
    """Name the design space that sketches come from."""

    DEFAULT = "default"
    """MetaSchedule's rules."""
    OWN = "own"
    """felixlike's rules; no sketches where none applies."""
    BEST = "best"
    """felixlike's rules, and MetaSchedule's where none applies; on GPUs, both."""
    ALL = "all"
    """Both sets of rules."""


def sketches(task: Task | Any, target: Any = "cpu", *, space: str = SpaceName.DEFAULT) -> tuple[Sketch, ...]:
    """Return the sketches of a task, or of a PrimFunc with static shapes.

    A sketch without a symbolic program is included; its `reason` says why the program is missing.

    Args:
        task: A task, or a TVM PrimFunc.
        target: The target of a PrimFunc: a name or a TVM target. Ignored for a task.
        space: A `SpaceName`: "default", "own", "best" or "all".

    Returns:
        The sketches, in the order of the design spaces.

    Raises:
        InvalidModel: If `task` is neither a task nor a PrimFunc.
        InvalidShape: If the PrimFunc has dynamic sizes.
        InvalidOption: If `space` is unknown.
        UnknownTarget: If `target` is unknown.
    """
    if not isinstance(task, Task):
        if not isinstance(task, _tvm.PrimFunc):
            raise InvalidModel(f"{kind_of(task)} is neither a task nor a PrimFunc", where="sketches", remedy=_HOW)
        buffers_of(task, where="sketches")
        task = make_task(task, resolve_target(target), name="main")
    candidates = [(design, trace) for design in _spaces(task, space) for trace in design.traces]
    return tuple(Sketch(task, trace, design.postprocessors, index) for index, (design, trace) in enumerate(candidates))


def stored_sketch(task: Task, trace: str) -> Sketch | None:
    """Rebuild a sketch from a stored trace, even if the design spaces no longer generate it.

    Args:
        task: The task that the trace belongs to.
        trace: The trace as JSON, as `Sketch.trace_json` writes it.

    Returns:
        The sketch, or None if TVM cannot read or replay the trace.
    """
    schedule = _tvm.Schedule(task.module)
    try:
        _tvm.Trace.apply_json_to_schedule(_tvm.trace_steps(trace), schedule)
    except _tvm.NotAllowed:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None
    design = own_space(task) if _has_own_rules(schedule.trace, task.target) else default_space(task)
    if not design.traces:
        design = default_space(task)
    return Sketch(task, schedule.trace, design.postprocessors, 0)


def is_own(sketch: Sketch) -> bool:
    """Return whether a sketch is of felixlike's design space, not of MetaSchedule's."""
    return _has_own_rules(sketch.trace, sketch.task.target)


def _has_own_rules(trace: Any, target: Any) -> bool:
    """Return whether felixlike's rules generated a trace.

    On CPUs, MetaSchedule's traces leave parallel loops to a postprocessor and annotate how many are allowed. On GPUs,
    felixlike's traces have annotations with the prefix "felixlike.".
    """
    annotations = [str(i.attrs[0]) for i in trace.insts if str(i.kind.name) == "Annotate"]
    if target_kind(target).binds_threads:
        return any(annotation.startswith("felixlike.") for annotation in annotations)
    return "meta_schedule.parallel" not in annotations


def check_space(space: str) -> SpaceName:
    """Return the `SpaceName` of a string.

    Raises:
        InvalidOption: If the name is unknown.
    """
    return SpaceName(option_checks.one_of(space, "space", SpaceName, what="a design space"))


def _spaces(task: Task, space: str) -> list[DesignSpace]:
    """Return the design spaces of a task that `space` names."""
    name = check_space(space)
    if name is SpaceName.DEFAULT:
        return [default_space(task)]
    own = own_space(task)
    # felixlike's rules for GPUs were developed without a GPU.
    wins = own.traces and not target_kind(task.target).binds_threads
    if name is SpaceName.OWN or (name is SpaceName.BEST and wins):
        return [own]
    return [own, default_space(task)]
