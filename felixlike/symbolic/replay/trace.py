"""Convert between MetaSchedule traces and points.

Input: a trace. Output: its `Variable`s, a trace with the decisions of a point, or the point of a trace with decisions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Instruction, Module, Trace
from felixlike._util.wording import counted
from felixlike.errors import InvalidPoint
from felixlike.symbolic.expr.factors import divisors
from felixlike.symbolic.expr.node import Group
from felixlike.symbolic.program.variables import Kind, Variable, groups

_ANNOTATED = {"meta_schedule.unroll_explicit": Kind.UNROLL, "meta_schedule.cooperative_fetch": Kind.FETCH}
"""The kind of variable that a sampled number is, by the annotation that stores it."""


def trace_variables(trace: Trace, module: Module) -> tuple[Variable, ...]:
    """Return one variable for each number that `trace`, a sketch of `module`, decides, in the order of the trace."""
    axes = _axis_names(trace, module)
    annotation_keys = _notes(trace)
    name_counts: Counter[str] = Counter()
    variables: list[Variable] = []
    for group, instruction in enumerate(trace.insts):
        match str(instruction.kind.name):
            case "SamplePerfectTile":
                name = axes[group]
                name_counts[name] += 1
                name = name if name_counts[name] == 1 else f"{name}'{name_counts[name]}"
                variables += _tile(instruction, [int(f) for f in trace.decisions[instruction]], name, group)
            case "SampleCategorical":
                choices = tuple(sorted(int(c) for c in instruction.attrs[0]))
                key = annotation_keys.get(_tvm.identity(instruction.outputs[0]), "")
                kind = _ANNOTATED.get(key, Kind.THREADS)
                name = "unroll" if kind is Kind.UNROLL else f"{kind}.{name_counts[kind]}"
                name_counts[kind] += 1
                variables.append(Variable(name, kind, 0, choices, group, 0))
            case "SampleComputeLocation":
                variables.append(Variable(f"location.{name_counts['location']}", Kind.LOCATION, 0, (), group, 0))
                name_counts["location"] += 1
    return tuple(variables)


def _notes(trace: Trace) -> dict[int | None, str]:
    """Return the annotation's key for every random variable that is stored in an annotation."""
    return {
        _tvm.identity(instruction.inputs[1]): str(instruction.attrs[0])
        for instruction in trace.insts
        if str(instruction.kind.name) == "Annotate"
    }


def _tile(instruction: Instruction, decision: Sequence[int], name: str, index: int) -> Iterator[Variable]:
    """Yield the variables of one perfectly tiled loop."""
    extent, largest_inner = math.prod(decision), int(instruction.attrs[1])
    all_divisors = divisors(extent)
    innermost = tuple(d for d in all_divisors if d <= largest_inner)
    outer = all_divisors
    if len(innermost) == 1 and len(decision) == 2:
        outer = (extent // innermost[0],)  # with a prime too large for the inner loop, there is one choice
    choices = [*[outer] * (len(decision) - 1), innermost]
    factor_group = Group(name, extent, sum(len(c) > 1 for c in choices))
    for position, values in enumerate(choices):
        yield Variable(f"{name}.{position}", Kind.TILE, extent, values, index, position, factor_group)


def _axis_names(trace: Trace, module: Module) -> dict[int, str]:
    """Return, for every SamplePerfectTile, the name of the axis that it tiles, as in the function."""
    iterators = {
        str(block.name_hint): [str(i.var.name).removeprefix("v_").removeprefix("v") for i in block.iter_vars]
        for block in _tvm.found(module["main"].body, _tvm.s_tir.SBlock)
    }
    names_by_handle: dict[int | None, str] = {}
    names: dict[int, str] = {}
    for index, instruction in enumerate(trace.insts):
        match str(instruction.kind.name):
            case "GetSBlock":
                names_by_handle[_tvm.identity(instruction.outputs[0])] = str(instruction.attrs[0])
            case "GetLoops":
                axes = iterators.get(names_by_handle.get(_tvm.identity(instruction.inputs[0]), ""), [])
                if len(axes) == len(instruction.outputs):
                    names_by_handle.update(zip(map(_tvm.identity, instruction.outputs), axes, strict=True))
            case "Fuse":
                parts = [names_by_handle.get(_tvm.identity(x), "x") for x in instruction.inputs]
                names_by_handle[_tvm.identity(instruction.outputs[0])] = "_".join(parts)
            case "Split" if instruction.inputs[1] is None:  # vectors are split off; the rest keeps the name
                names_by_handle[_tvm.identity(instruction.outputs[0])] = names_by_handle.get(
                    _tvm.identity(instruction.inputs[0]), "x"
                )
            case "SamplePerfectTile":
                names[index] = names_by_handle.get(_tvm.identity(instruction.inputs[0]), f"loop{index}")
    return names


def with_point(trace: Trace, variables: Sequence[Variable], point: Sequence[int]) -> Any:
    """Return the trace with the decisions of a point.

    Raises:
        InvalidPoint: If the point has another number of values than there are variables.
        ValueError: If a value is not among its variable's choices.
    """
    if len(point) != len(variables):
        raise InvalidPoint(f"expected {counted(len(variables), 'number')}, got {len(point)}", where="point")
    decisions: dict[Any, Any] = {}
    for group, members in groups(variables):
        instruction = trace.insts[group]
        values = [int(point[i]) for i in members]
        match variables[members[0]].kind:
            case Kind.TILE:
                decisions[instruction] = values
            case Kind.UNROLL | Kind.FETCH | Kind.THREADS:
                choices = [int(c) for c in instruction.attrs[0]]
                if values[0] not in choices:
                    name, expected = variables[members[0]].name, ", ".join(map(str, choices))
                    raise ValueError(f"{name} is {values[0]}, expected one of {expected}")
                decisions[instruction] = choices.index(values[0])
            case Kind.LOCATION:
                decisions[instruction] = values[0]
    return _tvm.Trace(trace.insts, decisions)


def point_of(trace: Trace, variables: Sequence[Variable]) -> tuple[int, ...]:
    """Return the point of a trace's decisions, the inverse of `with_point`. Postprocessors' instructions may follow."""
    point: list[int] = []
    for group, members in groups(variables):
        instruction = trace.insts[group]
        decision = trace.decisions[instruction]
        match variables[members[0]].kind:
            case Kind.TILE:
                point += [int(f) for f in decision]
            case Kind.UNROLL | Kind.FETCH | Kind.THREADS:
                point.append(int(instruction.attrs[0][int(decision)]))
            case Kind.LOCATION:
                point.append(int(decision))
    return tuple(point)


def point_of_json(
    instructions: Sequence[Any], decisions: Mapping[int, Any], places: Sequence[int], variables: Sequence[Variable]
) -> tuple[int, ...]:
    """Return the point of a trace in JSON.

    Args:
        instructions: The instructions, as `texts` returns them.
        decisions: The decisions by the instruction's position.
        places: The position of the instruction that decides each group.
        variables: The sketch's variables.

    Raises:
        InvalidPoint: If a decision is missing or of another kind.
    """
    point: list[int] = []
    try:
        for place, (_, members) in zip(places, groups(variables), strict=True):
            decision = decisions[place]
            match variables[members[0]].kind:
                case Kind.TILE:
                    if len(decision) != len(members):
                        raise InvalidPoint(
                            f"expected {counted(len(members), 'factor')}, got {len(decision)}", where="trace"
                        )
                    point += [int(f) for f in decision]
                case Kind.UNROLL | Kind.FETCH | Kind.THREADS:
                    point.append(int(instructions[place][2][0][int(decision)]))
                case Kind.LOCATION:
                    point.append(int(decision))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, InvalidPoint):
            raise
        raise InvalidPoint(f"a decision is missing or damaged ({error!r})", where="trace") from error
    return tuple(point)


def trace_json(trace: Trace) -> str:
    """Return a trace in the format of MetaSchedule's databases: JSON of [instructions, decisions]."""
    return json.dumps(_plain(trace.as_json(), lambda number: number.value))


def texts(value: Any) -> Any:
    """Convert every value in nested JSON lists to text.

    TVM writes the same number as 4 and as "4", and the same boolean as 1 and as true.
    """
    if isinstance(value, list):
        return [texts(v) for v in value]
    return str(int(value)) if isinstance(value, bool) else str(value)


def sketch_key(trace: Trace) -> str:
    """Return a key that traces with equal instructions share in every process, whatever their decisions."""
    instructions = trace.as_json()[0]
    return hashlib.sha256(json.dumps(_plain(instructions)).encode()).hexdigest()[:16]


def _plain(value: Any, leaf: Callable[[Any], Any] = str) -> Any:
    """Convert TVM's containers to Python's, for JSON.

    Args:
        leaf: Converts TVM's numbers.
    """
    if isinstance(value, (str, int, float, type(None))):
        return value
    if hasattr(value, "items"):
        return {str(k): _plain(v, leaf) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(v, leaf) for v in value]
    return leaf(value)
