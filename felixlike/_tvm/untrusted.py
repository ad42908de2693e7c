"""Load TVM's JSON from untrusted files: functions of record stores and databases, and traces.

Input: JSON. Output: an IRModule, or a trace's steps. TVM's reader creates objects of every registered type: modules of
machine code, global functions by name, tensors from bytes. It also follows references without a limit and crashes on
cycles. The graph is therefore checked before TVM reads it: it may only have types of tensor programs, each node must
come after those that it refers to, as TVM writes them, and no chain of references may exceed `_MOST_DEPTH`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from felixlike._tvm.names import ir

_LEAVES = frozenset(("None", "int", "bool", "float", "DataType", "ffi.String", "ir.Op"))
"""Types whose data is a value and has no references. ir.Op names an operator, which is not called."""

_TYPES = _LEAVES | frozenset(
    (
        *("ffi.Array", "ffi.Map"),
        *("ir.Call", "ir.DictAttrs", "ir.FloatImm", "ir.FuncType", "ir.GlobalVar", "ir.IRModule", "ir.IntImm"),
        *("ir.PointerType", "ir.PrimType", "ir.Range", "ir.SourceMap", "ir.SourceName", "ir.Span", "ir.StringImm"),
        *("ir.StringType", "ir.TensorLoad", "ir.TensorRegion", "ir.Tuple", "ir.TupleGetItem", "ir.TupleType"),
        *("ir.Type", "ir.Var"),
        *("prim.Add", "prim.And", "prim.BitwiseAnd", "prim.BitwiseNot", "prim.BitwiseOr", "prim.BitwiseXor"),
        *("prim.Broadcast", "prim.Cast", "prim.Div", "prim.EQ", "prim.FloorDiv", "prim.FloorMod", "prim.GE", "prim.GT"),
        *("prim.LE", "prim.LShift", "prim.LT", "prim.Let", "prim.Max", "prim.Min", "prim.Mod", "prim.Mul", "prim.NE"),
        *("prim.Not", "prim.Or", "prim.RShift", "prim.Ramp", "prim.Select", "prim.Shuffle", "prim.Sub"),
        *("relax.AnyType", "relax.FuncType", "relax.ShapeType", "relax.TensorType", "relax.expr.ShapeExpr"),
        *("s_tir.MatchBufferRegion", "s_tir.SBlock", "s_tir.SBlockRealize"),
        *("te.CommReducer", "te.Reduce"),
        *("tirx.AllocBuffer", "tirx.AssertStmt", "tirx.AttrStmt", "tirx.Bind", "tirx.Break", "tirx.BufferRegionType"),
        *("tirx.BufferStore", "tirx.BufferType", "tirx.Continue", "tirx.DeclBuffer", "tirx.Evaluate", "tirx.For"),
        *("tirx.IfThenElse", "tirx.IndexMap", "tirx.IterVar", "tirx.PrimFunc", "tirx.Return", "tirx.SeqStmt"),
        "tirx.While",
    )
)
"""Types of TVM 0.27 in functions of tasks and in index maps of traces."""

_NUMBERS = frozenset(
    (
        *("ndim", "data_alignment", "offset_factor", "value_index", "index", "iter_type", "kind"),
        *("line", "column", "end_line", "end_column"),
    )
)
"""Fields of these types whose integers are values. Integers of other fields are references."""

_CONSTANTS = frozenset(("ir.IntImm", "ir.FloatImm"))
"""Types whose field `value` is a value, too."""

_MOST_DEPTH = 1000
"""Upper limit on the length of a chain of references. The functions of the shipped measurements have at most 33. TVM's
reader overflows a stack of 8 MiB between 2500 and 3000."""


class NotAllowed(ValueError):
    """Raised if JSON has something that functions and traces do not consist of."""


def load_function(text: str) -> Any:
    """Read an IRModule. Raises NotAllowed, or TVM's error for an invalid graph."""
    module = ir.load_json(_checked_graph(text))
    if not isinstance(module, ir.IRModule):
        raise NotAllowed("it is not an IRModule")
    return module


def trace_steps(text: str) -> Any:
    """Read a trace's [instructions, decisions] for `Trace.apply_json_to_schedule`. Raises NotAllowed.

    TVM also reads texts of inputs and attributes in it as graphs.
    """
    return _checked_texts(_parsed(text))


def _parsed(text: Any) -> Any:
    """Parse JSON. Raises NotAllowed."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotAllowed(f"it is not JSON: {type(error).__name__}") from None


def _checked_texts(steps: Any) -> Any:
    """Return the steps with every graph in them checked."""
    if isinstance(steps, list):
        return [_checked_texts(step) for step in steps]
    if isinstance(steps, dict):
        return {key: _checked_texts(step) for key, step in steps.items()}
    return _checked_graph(steps) if isinstance(steps, str) and "{" in steps else steps


def _checked_graph(text: str) -> str:
    """Check a graph and return it as Python writes it, so that TVM's parser cannot read it differently."""
    graph = _parsed(text)
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list):
        raise NotAllowed("it has no list of nodes")
    depths: list[int] = []
    for place, node in enumerate(nodes):
        kind = node.get("type") if isinstance(node, dict) else None
        if not isinstance(kind, str) or kind not in _TYPES:
            raise NotAllowed(f"node {place} has the type {str(kind)[:60]}, which is not allowed")
        references = list(_references(node))
        if any(not 0 <= reference < place for reference in references):
            raise NotAllowed(f"node {place} refers to a node that does not precede it")
        depths.append(1 + max((depths[reference] for reference in references), default=0))
        if depths[-1] > _MOST_DEPTH:
            raise NotAllowed(f"node {place} is more than {_MOST_DEPTH} references deep")
    return json.dumps(graph)


def _references(node: dict[str, Any]) -> Iterator[int]:
    """Yield the places of the nodes that a node refers to."""
    kind, data = node["type"], node.get("data")
    if kind in _LEAVES:
        return
    if not isinstance(data, list | dict):
        raise NotAllowed(f"a node of type {kind} has no fields")
    for field, value in data.items() if isinstance(data, dict) else enumerate(data):
        if field in _NUMBERS or (field == "value" and kind in _CONSTANTS):
            continue
        if type(value) is int:
            yield value
        elif isinstance(value, list | dict):
            raise NotAllowed(f"a node of type {kind} has nested fields")
