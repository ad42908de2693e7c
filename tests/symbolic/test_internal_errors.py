"""Errors that TVM raises refuse a schedule; errors in felixlike's own code are raised to the caller."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.operators import OPERATORS, matmul

from felixlike import _tvm
from felixlike.errors import InvalidSchedule, UnsupportedSketch
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target, target_device
from felixlike.spaces import KEEPS_TO_BOUNDS, design, surroundings
from felixlike.spaces.cpu import register_tile, rows
from felixlike.symbolic import sketches, stored_sketch
from felixlike.symbolic.replay import scheduler as scheduler_file
from felixlike.symbolic.replay.primitives import PRIMITIVES, location
from felixlike.symbolic.replay.primitives.primitive import Primitive

ERROR_KINDS = (RuntimeError, ValueError, TypeError)
"""Kinds of errors that TVM's refusals can also have."""


def _task(operator: str) -> Task:
    return make_task(OPERATORS[operator](), resolve_target("cpu"), name="task")


def _raising(kind: type[Exception]) -> Any:
    def mistaken(*_: Any, **__: Any) -> Any:
        raise kind("ours")

    return mistaken


def test_only_errors_of_tvm_are_refusals() -> None:
    schedule = _tvm.Schedule(matmul(8, 8, 8))
    for call in (
        lambda: schedule.get_sblock("nothing"),  # a ScheduleError
        lambda: _tvm.tirx.const("x", "int32"),  # a check in C++
        lambda: _tvm.sym.Analyzer().simplify("x"),  # an argument of a wrong type
    ):
        with pytest.raises(_tvm.TVM_ERRORS) as caught:
            call()  # type: ignore[no-untyped-call]
        assert _tvm.refusal(caught.value)
    for kind in ERROR_KINDS:
        assert not _tvm.refusal(kind("ours"))
    with pytest.raises(TypeError) as wrapped:
        schedule.get_loops(3)  # TVM's Python wrappers raise errors about wrong arguments
    assert not _tvm.refusal(wrapped.value)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_callbacks_are_not_refusals(kind: type[Exception]) -> None:
    """Callbacks of TVM, and calls of TVM in callbacks, raise through the same FFI."""
    module = _tvm.IRModule({"main": matmul(8, 8, 8)})

    def raised(step: Callable[[], Any]) -> Exception:
        with pytest.raises(ERROR_KINDS) as caught:
            _tvm.transform.module_pass(lambda *_: step(), opt_level=0)(module)
        return caught.value

    ours, theirs = raised(_raising(kind)), raised(lambda: module["nothing"])
    assert type(ours) is kind
    assert not _tvm.refusal(ours)
    assert not _tvm.raised_in_tvm(ours)
    assert _tvm.refusal(theirs)
    with pytest.raises(ValueError, match="has to be a string") as caught:
        _tvm.Target([1])
    assert _tvm.raised_in_tvm(caught.value)
    assert not _tvm.refusal(caught.value)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_replays_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRIMITIVES, "Split", Primitive(_raising(kind)))
    with pytest.raises(kind, match="ours"):
        _ = sketches(_task("matmul"), space="default")[0].is_symbolic


def test_refusals_in_replays_are_unsupported_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Primitive(lambda state, *_: state.schedule.get_sblock("nothing"))
    monkeypatch.setitem(PRIMITIVES, "Split", refused)
    sketch = sketches(_task("matmul"), space="default")[0]
    with pytest.raises(UnsupportedSketch, match=r"TVM .*Split") as caught:
        _ = sketch.program
    assert caught.value.where.startswith("step ")


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_inlining_checks_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = _tvm.Schedule(OPERATORS["dense_bias_relu"]())
    state: Any = type("State", (), {"schedule": schedule})
    last = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
    assert not location._can_inline(state, last)  # an output
    monkeypatch.setattr(_tvm.Schedule, "compute_inline", _raising(kind))
    with pytest.raises(kind, match="ours"):
        location._can_inline(state, last)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_schedules_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = sketches(_task("matmul"), space="own")[0]
    point = sketch.sample(1, seed=0)[0]
    with monkeypatch.context() as patch:
        patch.setattr(scheduler_file, "point_of", _raising(kind))
        with pytest.raises(kind, match="ours"):
            sketch.schedule(point)
    refused = _tvm.Schedule(sketch.task.module)
    monkeypatch.setattr(scheduler_file, "point_of", lambda *_: refused.get_sblock("nothing"))
    with pytest.raises(InvalidSchedule, match=f"TVM .*{re.escape(str(tuple(point.tolist())))}"):
        sketch.schedule(point)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_postprocessors_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM would also call the postprocessor and pass its error on as its own."""
    monkeypatch.setattr(design, "keeps_to_bounds", _raising(kind))
    sketch = sketches(_task("matmul"), space="own")[0]
    (postprocessor,) = [p for p in sketch.postprocessors if p.name == KEEPS_TO_BOUNDS]
    schedule = _tvm.Schedule(sketch.task.module)
    with pytest.raises(kind, match="ours"):
        postprocessor.apply(schedule)
    with pytest.raises(kind, match="ours"):
        sketch.schedule(sketch.sample(1, seed=0)[0])


def test_errors_in_row_schedules_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tvm.Schedule, "split", _raising(RuntimeError))
    with pytest.raises(RuntimeError, match="ours"):
        rows.row_by_row(_tvm.Schedule(OPERATORS["softmax"]()), 8)
    monkeypatch.setattr(_tvm.Schedule, "split", lambda schedule, *_, **__: schedule.get_sblock("nothing"))
    assert rows.row_by_row(_tvm.Schedule(OPERATORS["softmax"]()), 8) == []


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_scheduling_surroundings_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = _tvm.Schedule(OPERATORS["dense_bias_relu"]())
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    monkeypatch.setattr(_tvm.Schedule, "compute_inline", _raising(kind))
    with pytest.raises(kind, match="ours"):
        surroundings.settle_surroundings(schedule, block)
    monkeypatch.setattr(_tvm.Schedule, "compute_inline", lambda schedule, _: schedule.get_sblock("nothing"))
    schedule = _tvm.Schedule(OPERATORS["dense_bias_relu"]())
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    assert surroundings.settle_surroundings(schedule, block) is None


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_padding_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    task = _task("matmul_odd")
    monkeypatch.setattr(_tvm.Schedule, "pad_einsum", _raising(kind))
    schedule = _tvm.Schedule(task.module)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    device = target_device(task.target)
    with pytest.raises(kind, match="ours"):
        register_tile.register_tiles(schedule, block, device)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_in_stored_sketches_are_raised(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    task = _task("matmul")
    trace = sketches(task, space="own")[0].trace_json()
    monkeypatch.setattr(_tvm.Trace, "apply_json_to_schedule", staticmethod(_raising(kind)))
    with pytest.raises(kind, match="ours"):
        stored_sketch(task, trace)
