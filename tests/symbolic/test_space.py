"""Sketches that a store remembers."""

from __future__ import annotations

import pytest
from support.operators import conv2d, matmul

from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches, stored_sketch


@pytest.mark.parametrize("space", ["own", "default"])
def test_a_stored_sketch_is_the_one_it_was(space: str) -> None:
    task = make_task(conv2d(8, 14, 16) if space == "own" else matmul(32, 48, 40), resolve_target("cpu"), name="task")
    for sketch in sketches(task, space=space):
        again = stored_sketch(task, sketch.trace_json())
        assert again is not None
        assert str(again.program) == str(sketch.program)
        assert [p.name for p in again.postprocessors] == [p.name for p in sketch.postprocessors]
        points = sketch.sample(20, 0)
        assert again.valid(points).all()


@pytest.mark.parametrize("trace", ["", "[]", "[[1], [2]]", "null", "3", "{}", "[" * 100_000])
def test_damaged_traces_are_none(trace: str) -> None:
    assert stored_sketch(make_task(matmul(32, 48, 40), resolve_target("cpu"), name="task"), trace) is None
