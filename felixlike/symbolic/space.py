"""All sketches of a task, of one design space or of both."""

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
    """Where sketches come from."""

    DEFAULT = "default"
    """MetaSchedule's rules."""
    OWN = "own"
    """Our rules; nothing where none applies."""
    BEST = "best"
    """Our rules, MetaSchedule's where none applies; on GPUs both compete."""
    ALL = "all"
    """Both."""


def sketches(task: Task | Any, target: Any = "cpu", *, space: str = SpaceName.DEFAULT) -> tuple[Sketch, ...]:
    """The sketches of a task, or of a PrimFunc with static shapes on a target (a name or a TVM target).

    space: see `SpaceName`.  Raises UnknownTarget, InvalidOption; a sketch that is not understood symbolically is among
    them, with its reason. Raises InvalidModel for anything but a task or a PrimFunc, InvalidShape for open sizes."""
    if not isinstance(task, Task):
        if not isinstance(task, _tvm.PrimFunc):
            raise InvalidModel(f"{kind_of(task)} is neither a task nor a PrimFunc", where="sketches", remedy=_HOW)
        buffers_of(task, where="sketches")
        task = make_task(task, resolve_target(target), name="main")
    found = [(design, trace) for design in _spaces(task, space) for trace in design.traces]
    return tuple(Sketch(task, trace, design.postprocessors, index) for index, (design, trace) in enumerate(found))


def stored_sketch(task: Task, trace: str) -> Sketch | None:
    """The sketch of a task that a store keeps the trace of, also where the spaces no longer make it; None where TVM
    cannot read or replay it.  trace: JSON, as `trace_json` writes it."""
    schedule = _tvm.Schedule(task.module)
    try:
        _tvm.Trace.apply_json_to_schedule(_tvm.trace_steps(trace), schedule)
    except _tvm.NotAllowed:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None
    design = own_space(task) if _is_own(schedule.trace, task.target) else default_space(task)
    if not design.traces:
        design = default_space(task)
    return Sketch(task, schedule.trace, design.postprocessors, 0)


def _is_own(trace: Any, target: Any) -> bool:
    """Whether a trace is one of our rules'.  On CPUs MetaSchedule's leave it to a postprocessor which loops are
    parallel, and note how many may be; on GPUs ours have notes of ours."""
    notes = [str(i.attrs[0]) for i in trace.insts if str(i.kind.name) == "Annotate"]
    if target_kind(target).binds_threads:
        return any(note.startswith("felixlike.") for note in notes)
    return "meta_schedule.parallel" not in notes


def check_space(space: str) -> SpaceName:
    """The space of a name.  Raises InvalidOption for others."""
    return SpaceName(option_checks.one_of(space, "space", SpaceName, what="a design space"))


def _spaces(task: Task, space: str) -> list[DesignSpace]:
    name = check_space(space)
    if name is SpaceName.DEFAULT:
        return [default_space(task)]
    own = own_space(task)
    wins = own.traces and not target_kind(task.target).binds_threads  # ours for GPUs were made without one
    if name is SpaceName.OWN or (name is SpaceName.BEST and wins):
        return [own]
    return [own, default_space(task)]
