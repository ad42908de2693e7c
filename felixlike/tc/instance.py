"""Specialise a program for concrete sizes and lower it to a Relax module that can be tuned and compiled.

Input: a program, the shapes and dtypes of its inputs, a target. Output: `Instance`, and a Relax module whose "main"
calls one function per group of nodes. It returns the program's outputs, then one number per runtime check, which is not
0 if an access was outside its tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike.frontend import Imported, Signature
from felixlike.frontend.extract import extract
from felixlike.frontend.importers.relax import inputs_of
from felixlike.frontend.signature.structure import structure_of
from felixlike.tc.bounds import Bounds, Check, examine
from felixlike.tc.call import Given, sizes_of
from felixlike.tc.groups import Group, grouped
from felixlike.tc.lower import Facts, function, identifier
from felixlike.tc.nodes import Node, nodes_of
from felixlike.tc.program import Binary, Choose, Convert, Index, Literal, Program, Value, walk
from felixlike.tc.ranges import Ranges, infer

_OPAQUE = 8
"""TVM's operator pattern of functions that are not fused with others. Grouping is done in `groups.py`."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A program for concrete sizes.

    Attributes:
        program: The program.
        sizes: Sizes by name.
        ranges: Ranges of all indices.
        bounds: How each access is kept within its tensor.
        groups: Groups of nodes, those of outputs first, then one per check.
        checks: The nodes of the runtime checks.
    """

    program: Program
    sizes: Mapping[str, int]
    ranges: Ranges
    bounds: Bounds
    groups: tuple[Group, ...]
    checks: tuple[Node, ...]


def instance(program: Program, given: Sequence[Given]) -> Instance:
    """Specialise a program for inputs of these shapes and dtypes. Raise TCCallError, TCRangeError."""
    sizes = sizes_of(program, given)
    ranges = infer(program, sizes)
    bounds = examine(program, sizes, ranges)
    nodes = nodes_of(program, ranges)
    shapes = {tensor.name: ranges.shape(tensor.name) for tensor in program.parameters}
    shapes |= {output.name: ranges.shape(output.name) for output in program.given}
    shapes |= {node.name: node.shape for node in nodes}
    before = _versions_by_step(program, nodes)
    checks = tuple(_check(number, check, ranges, before[check.step]) for number, check in enumerate(bounds.checks))
    groups = (*grouped(nodes, shapes), *(Group([check]) for check in checks))
    return Instance(program, sizes, ranges, bounds, groups, checks)


def _versions_by_step(program: Program, nodes: Sequence[Node]) -> dict[int, Mapping[str, str]]:
    """Return the tensor versions that each statement reads, by the number of the statement."""
    versions: dict[int, Mapping[str, str]] = {}
    for node in nodes:
        versions.setdefault(node.step, node.versions)
    return versions


def _check(number: int, check: Check, ranges: Ranges, versions: Mapping[str, str]) -> Node:
    """Make a node that computes one number: 1 if an access leaves its tensor anywhere, else 0."""
    subscript = check.read.subscripts[check.dimension]
    span, (low, high) = subscript.span, check.bounds
    place = Convert(subscript, "int64", span)
    below = Binary("<", place, Literal(low, "int64", span), "bool", span)
    above = Binary(">", place, Literal(high, "int64", span), "bool", span)
    value: Value = Choose(
        Binary("||", below, above, "bool", span), Literal(1, "int32", span), Literal(0, "int32", span), "int32", span
    )
    for test, holds in reversed(check.tests):
        nothing = Literal(0, "int32", span)
        left, right = (value, nothing) if holds else (nothing, value)
        value = Choose(test, left, right, "int32", span)
    names = tuple(dict.fromkeys(part.name for part in walk(value) if isinstance(part, Index)))
    intervals = ranges.domains[check.step].intervals
    return Node(
        name=f"check.{number}",
        output="",
        dtype="int32",
        indices=(),
        reduced=names,
        operator="max" if names else "=",
        intervals={name: intervals[name] for name in names},
        value=value,
        versions=versions,
        step=check.step,
    )


def imported(made: Instance, target: Any, *, examples: Sequence[Any] = ()) -> Imported:
    """Return the instance as an imported model. examples: A torch tensor for each input, used for verification."""
    module = relax_module(made)
    tasks, functions = extract(module, target)
    names = [_name for _name, _, _ in inputs(made)]
    returned = len(made.program.outputs) + len(made.checks)
    single = returned == 1
    return Imported(
        name=made.program.name,
        module=module,
        inputs=inputs_of(module["main"], where=made.program.name),
        signature=Signature.plain(names),
        structure=structure_of(object() if single else tuple(object() for _ in range(returned))),
        target=target,
        tasks=tasks,
        functions=functions,
        examples=tuple(examples),
        original=relax_module(apart(made)),
    )


def apart(made: Instance) -> Instance:
    """Return the instance with one function per node."""
    return replace(made, groups=tuple(Group([node]) for group in made.groups for node in group.nodes))


def inputs(made: Instance) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and dtype of each input: parameters, then outputs that are accumulated into."""
    program = made.program
    tensors = [(t.name, t.dtype) for t in program.parameters] + [(o.name, o.dtype) for o in program.given]
    return [(name, made.ranges.shape(name), dtype) for name, dtype in tensors]


def relax_module(made: Instance) -> Any:
    """Return a Relax module that calls one function per group, in order."""
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    params = [relax.Var(identifier(name), relax.TensorType(shape, dtype)) for name, shape, dtype in inputs(made)]
    with builder.function("main", params):
        with builder.dataflow():
            values = emitted(made, builder, params)
            returned = [*(values[name] for name in results(made))]
            result = builder.emit_output(returned[0] if len(returned) == 1 else relax.Tuple(returned))
        builder.emit_func_output(result)
    return builder.get()


def results(made: Instance) -> list[str]:
    """Return the names of the returned nodes: the last one of each output, in order, then the checks."""
    last = {node.output: node.name for group in made.groups for node in group.nodes if node.output}
    return [*(last[output.name] for output in made.program.outputs), *(check.name for check in made.checks)]


def emitted(made: Instance, builder: Any, given: Sequence[Any]) -> dict[str, Any]:
    """Emit calls of all groups into a Relax function; return the Relax value of each tensor that later groups or
    results use.

    given: Relax values, in the order of `inputs`.
    """
    relax = _tvm.relax
    types_by_name = {name: (shape, dtype) for name, shape, dtype in inputs(made)}
    values = {name: value for (name, _, _), value in zip(inputs(made), given, strict=True)}
    nodes = {node.name: node for group in made.groups for node in group.nodes}
    facts = Facts(made.sizes, _all_bounds(made, nodes), made.bounds.kept)
    returned = set(results(made))
    for number, group in enumerate(made.groups):
        used = returned | {name for other in made.groups[number + 1 :] for name in other.inputs()}
        out = [node.name for node in group.nodes if node.name in used]
        group_inputs = group.inputs()
        func = function(group.nodes, [(name, *types_by_name[name]) for name in group_inputs], out, facts)
        name = identifier(f"{made.program.name}_{'_'.join(out)}")
        variable = builder.add_func(
            _tvm.without_attributes(func, "global_symbol").with_attr("op_pattern", _OPAQUE), name
        )
        types = [relax.TensorType(nodes[n].shape, nodes[n].dtype) for n in out]
        call = relax.call_tir(variable, [values[n] for n in group_inputs], types[0] if len(out) == 1 else types)
        result = builder.emit(call)
        for place, n in enumerate(out):
            values[n] = result if len(out) == 1 else builder.emit(relax.TupleGetItem(result, place))
            types_by_name[n] = (nodes[n].shape, nodes[n].dtype)
    return values


def _all_bounds(made: Instance, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Return the subscript bounds of the program's tensors and of all nodes."""
    node_bounds = {node.name: tuple(node.intervals[index] for index in node.indices) for node in nodes.values()}
    return {**node_bounds, **made.ranges.bounds}
