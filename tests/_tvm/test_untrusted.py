"""Functions and traces of untrusted files are loaded only if they consist of allowed node types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import workloads
from support.operators import OPERATORS

from felixlike import _tvm, records
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.records import StoredWorkload
from felixlike.records.metaschedule import RECORDS, WORKLOADS, import_database
from felixlike.symbolic import sketches, stored_sketch
from felixlike.symbolic.replay.trace import trace_json
from felixlike.training.samples import restored

NONE = {"type": "None"}


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(workloads.matmul(8, 8, 8), resolve_target("cpu"), name="dense")


def _graph(*nodes: dict[str, Any]) -> str:
    return json.dumps({"root_index": len(nodes) - 1, "nodes": list(nodes), "metadata": {}})


HARMFUL = {
    "a library": _graph(NONE, {"type": "ffi.Module", "data": "AAAA"}),
    "a global function": _graph(NONE, {"type": "ffi.Function", "data": "ffi.SystemLib"}),
    "an environment function": _graph(NONE, {"type": "ir.EnvFunc", "data": "ffi.SystemLib"}),
    "a tensor": _graph(NONE, {"type": "ffi.Tensor", "data": "AAAA"}),
    "a circle": _graph({"type": "ffi.Array", "data": [0]}),
    "a circle of two": _graph({"type": "ffi.Array", "data": [1]}, {"type": "ffi.Array", "data": [0]}),
    "a circle of an object": _graph(NONE, {"type": "prim.Add", "data": {"span": 0, "ty": 0, "a": 1, "b": 1}}),
    "a long chain": _graph(NONE, *({"type": "ffi.Array", "data": [place]} for place in range(10_000))),
    "a negative reference": _graph(NONE, {"type": "ffi.Array", "data": [-1]}),
    "parts within parts": _graph(NONE, {"type": "ffi.Array", "data": [[0]]}),
    "no parts": _graph(NONE, {"type": "ffi.Array"}),
    "no type": _graph({}),
    "a type of another kind": _graph({"type": ["None"]}),
    "no nodes": "{}",
    "nodes of another kind": '{"nodes": [1]}',
    "no JSON": "{",
    "JSON beyond all measure": "[" * 100_000,
    "no IRModule": _graph(NONE, {"type": "ffi.Array", "data": [0]}),
    "nothing": "",
}


@pytest.mark.parametrize("text", HARMFUL.values(), ids=HARMFUL)
def test_disallowed_nodes_are_refused(text: str) -> None:
    with pytest.raises(_tvm.NotAllowed):
        _tvm.load_function(text)


def test_the_second_of_two_equal_keys_is_used() -> None:
    """The check and TVM must read the same of two equal keys, or a library could pass as an array."""
    text = _graph(NONE, {"type": "ffi.Module", "data": [0]}).replace(
        '"ffi.Module"', '"ffi.Module", "type": "ffi.Array"'
    )
    with pytest.raises(_tvm.NotAllowed, match="IRModule"):
        _tvm.load_function(text)


@pytest.mark.parametrize("name", OPERATORS)
def test_functions_survive_a_round_trip(name: str) -> None:
    module = _tvm.IRModule({"main": OPERATORS[name](small_size=True)})
    again = _tvm.load_function(str(_tvm.ir.save_json(module)))
    assert _tvm.structural_equal(again, module)


def _with_attribute(trace: str, text: str) -> str:
    """Return the trace with `text` added to the attributes of its first instruction."""
    steps = json.loads(trace)
    steps[0][0][2].append([text])
    return json.dumps(steps)


@pytest.mark.parametrize("name", ["a library", "a circle", "no JSON"])
def test_attributes_of_traces_are_checked(task: Task, name: str) -> None:
    sketch = sketches(task)[0]
    assert stored_sketch(task, sketch.trace_json()) is not None
    with pytest.raises(_tvm.NotAllowed):
        _tvm.trace_steps(_with_attribute(sketch.trace_json(), HARMFUL[name]))
    assert stored_sketch(task, _with_attribute(sketch.trace_json(), HARMFUL[name])) is None


def test_index_maps_in_traces_are_allowed() -> None:
    schedule = _tvm.Schedule(_tvm.IRModule({"main": workloads.matmul(8, 8, 8)}))
    block = schedule.get_sblock("C")
    schedule.transform_layout(block, ("write", 0), lambda i, j: (j, i))
    replayed = _tvm.Schedule(_tvm.IRModule({"main": workloads.matmul(8, 8, 8)}))
    text = trace_json(schedule.trace)
    assert "IndexMap" in text
    _tvm.Trace.apply_json_to_schedule(_tvm.trace_steps(text), replayed)
    assert _tvm.structural_equal(replayed.mod, schedule.mod)


@pytest.mark.parametrize("name", ["a library", "a circle", "no JSON", "a long chain"])
def test_disallowed_functions_in_stores_are_not_restored(task: Task, name: str) -> None:
    stored = StoredWorkload(task.key, "dense", str(_tvm.ir.save_json(task.module)), str(task.target))
    assert restored(stored) is not None
    assert restored(StoredWorkload(task.key, "dense", HARMFUL[name], str(task.target))) is None


def _line(text: str) -> str:
    encoded = base64.b64encode(len(text).to_bytes(8, "little") + text.encode()).decode()
    return json.dumps(["0", encoded])


LINES: dict[str, Callable[[Task], str]] = {
    "a library": lambda task: _line(HARMFUL["a library"]),
    "another hash": lambda task: _line(str(_tvm.ir.save_json(task.module))),
    "no base64": lambda task: json.dumps(["0", "ä"]),
    "no text": lambda task: json.dumps(["0", 5]),
    "one part": lambda task: json.dumps(["0"]),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_disallowed_functions_in_databases_are_passed_over(
    task: Task, line: Callable[[Task], str], tmp_path: Path
) -> None:
    (tmp_path / WORKLOADS).write_text(f"{line(task)}\n")
    (tmp_path / RECORDS).write_text(json.dumps([0, [[[], []], [1e-3], None, []]]) + "\n")
    with records.open() as store:
        imported = import_database(store, tmp_path)
    assert dict(imported.passed_over) == {"of a workload that TVM cannot read": 1}
