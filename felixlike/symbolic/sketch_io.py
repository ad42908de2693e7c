"""Convert sketches to plain data and back, without generating their design space again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from felixlike import _tvm
from felixlike.frontend.task import Task
from felixlike.spaces import postprocessors
from felixlike.symbolic.replay.sketch import Sketch


def sketch_data(sketch: Sketch) -> dict[str, Any]:
    """Return a sketch as plain data that `json.dumps` accepts.

    Args:
        sketch: The sketch to describe.

    Returns:
        A dictionary with the key, the trace as JSON, the postprocessors' names and origins, and the sketch's index.
    """
    return {
        "key": sketch.key,
        "trace": sketch.trace_json(),
        "postprocessors": [p.name for p in sketch.postprocessors],
        "own": [p.own is not None for p in sketch.postprocessors],
        "index": sketch.index,
    }


def kept_sketch(task: Task, data: Mapping[str, Any]) -> Sketch:
    """Rebuild a sketch from the data that `sketch_data` returned.

    Args:
        task: The task that the sketch belongs to.
        data: The result of `sketch_data`, possibly read from JSON.

    Returns:
        The sketch, with its stored key.

    Raises:
        KeyError, TypeError, ValueError, or an error of TVM: If the data does not describe a sketch of this task.
    """
    schedule = _tvm.Schedule(task.module)
    _tvm.Trace.apply_json_to_schedule(_tvm.trace_steps(data["trace"]), schedule)
    runners = postprocessors(task, data["postprocessors"], data["own"])
    # The key is stored, since numbers of a parsed trace may have other types than in the original.
    return Sketch(task, schedule.trace, runners, int(data["index"]), str(data["key"]))
