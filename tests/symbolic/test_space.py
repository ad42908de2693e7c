"""Sketches are restored from stored traces."""

from __future__ import annotations

import pytest
from support.operators import OPERATORS, conv2d, matmul

from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic import is_own, sketches, stored_sketch


@pytest.mark.parametrize("space", ["own", "default"])
def test_a_restored_sketch_equals_the_original(space: str) -> None:
    task = make_task(conv2d(8, 14, 16) if space == "own" else matmul(32, 48, 40), resolve_target("cpu"), name="task")
    for sketch in sketches(task, space=space):
        restored = stored_sketch(task, sketch.trace_json())
        assert restored is not None
        assert str(restored.program) == str(sketch.program)
        assert [p.name for p in restored.postprocessors] == [p.name for p in sketch.postprocessors]
        points = sketch.sample(20, 0)
        assert restored.valid(points).all()


@pytest.mark.parametrize("trace", ["", "[]", "[[1], [2]]", "null", "3", "{}", "[" * 100_000])
def test_damaged_traces_are_not_restored(trace: str) -> None:
    assert stored_sketch(make_task(matmul(32, 48, 40), resolve_target("cpu"), name="task"), trace) is None


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", ["matmul", "softmax_3d", "conv1d", "depthwise"])
def test_sketches_of_the_own_rules_are_told_from_metaschedules(name: str, target: str) -> None:
    task = make_task(OPERATORS[name](), resolve_target(target), name=name)
    own, default = (sketches(task, space=space) for space in ("own", "default"))
    assert own
    assert all(is_own(sketch) for sketch in own)
    assert not any(is_own(sketch) for sketch in default)
