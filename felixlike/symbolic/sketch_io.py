"""Sketches as plain data, for what is kept of them outside: made again without their design space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from felixlike import _tvm
from felixlike.frontend.task import Task
from felixlike.spaces import postprocessors
from felixlike.symbolic.replay.sketch import Sketch


def sketch_data(sketch: Sketch) -> dict[str, Any]:
    """What makes a sketch, ready for JSON."""
    return {
        "key": sketch.key,
        "trace": sketch.trace_json(),
        "postprocessors": [p.name for p in sketch.postprocessors],
        "own": [p.own is not None for p in sketch.postprocessors],
        "index": sketch.index,
    }


def kept_sketch(task: Task, data: Mapping[str, Any]) -> Sketch:
    """The sketch that `sketch_data` has told of. Raises KeyError, TypeError, ValueError or TVM's errors for what is
    none of this task."""
    schedule = _tvm.Schedule(task.module)
    _tvm.Trace.apply_json_to_schedule(_tvm.trace_steps(data["trace"]), schedule)
    runners = postprocessors(task, data["postprocessors"], data["own"])
    sketch = Sketch(task, schedule.trace, runners, int(data["index"]))
    sketch.key = str(data["key"])  # of a trace that was read, some numbers are of another type than as it was made
    return sketch
