"""Split statements into nodes; each node computes one tensor once, from parameters and earlier nodes.

Input: a program and its ranges. Output: `Node`s in order. A tensor that is written several times has a node for each
write. An accumulation becomes a reduction that starts from the neutral element and an elementwise node that adds the
previous contents:

    O(i) = b(i)                      O.1(i) = b(i)
    O(i) += s * A(i, k) * x(k)   →   O.2.sum(i) +=! A(i, k) * x(k)
                                     O.2(i) = O.1(i) + O.2.sum(i) * s

Factors that are constant in a sum are moved out of it, so that the sum is a plain product, as in imported models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from felixlike.tc.linear import Interval
from felixlike.tc.program import Binary, Convert, Index, Literal, Program, Read, Step, Unary, Value, walk
from felixlike.tc.ranges import Ranges
from felixlike.tc.scalars import is_float
from felixlike.tc.source import Span


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor that is computed.

    Attributes:
        name: Unique name.
        output: The program's tensor of which this is the last version, "" for other nodes.
        dtype: Element type.
        indices: One index per dimension.
        reduced: Indices that are reduced over.
        operator: Operator of the reduction, "=" for none.
        intervals: Ranges of all its indices.
        value: The value of an element.
        versions: For each tensor that the value reads, the parameter or node that holds it.
        step: Number of the statement.
    """

    name: str
    output: str
    dtype: str
    indices: tuple[str, ...]
    reduced: tuple[str, ...]
    operator: str
    intervals: Mapping[str, Interval]
    value: Value
    versions: Mapping[str, str]
    step: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(extent(self.intervals[index]) for index in self.indices)

    def reads(self) -> Iterator[tuple[str, Read]]:
        """Yield (parameter or node, access) for each access."""
        for value in walk(self.value):
            if isinstance(value, Read):
                yield self.versions[value.tensor], value


def extent(interval: Interval) -> int:
    """Return the number of values in an interval."""
    return interval[1] - interval[0] + 1


def nodes_of(program: Program, ranges: Ranges) -> tuple[Node, ...]:
    """Return the nodes of a program, each after those it reads."""
    nodes: list[Node] = []
    names = [*(parameter.name for parameter in program.parameters), *(output.name for output in program.given)]
    versions = {name: name for name in names}
    last = {step.target: number for number, step in enumerate(program.steps)}
    for number, step in enumerate(program.steps):
        made = _Maker(step, number, ranges, versions, last[step.target] == number).made()
        nodes += made
        versions = {**versions, step.target: made[-1].name}
    return tuple(nodes)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the nodes of one statement."""

    step: Step
    number: int
    ranges: Ranges
    versions: Mapping[str, str]
    last: bool

    def made(self) -> list[Node]:
        """Return the nodes of the statement."""
        step = self.step
        output = step.target if self.last else ""
        if not step.reduced:
            value = step.value if step.fresh else self._joined(self._read_at_indices(step.target), step.value)
            return [self._node("", output, value, {})]
        factors, rest = _extract_factors(step)
        if step.fresh and not factors:
            return [self._node("", output, rest, {}, reduces=True)]
        partial = self._node("sum", "", rest, {}, reduces=True)
        value = self._read_at_indices(partial.name)
        for operator, factor in factors:
            if operator == "-":
                value = Unary("-", value, value.dtype, factor.span)
            else:
                value = Binary(operator, value, factor, value.dtype, factor.span)
        if not step.fresh:
            value = self._joined(self._read_at_indices(step.target), value)
        return [partial, self._node("", output, value, {partial.name: partial.name})]

    def _node(self, kind: str, output: str, value: Value, more: Mapping[str, str], *, reduces: bool = False) -> Node:
        """Return a node of the statement. more: versions of tensors that only this node reads."""
        step, intervals = self.step, self.ranges.domains[self.number].intervals
        reduced = step.reduced if reduces else ()
        return Node(
            name=".".join(filter(None, (step.target, str(self.number + 1), kind))),
            output=output,
            dtype=step.value.dtype,
            indices=step.indices,
            reduced=reduced,
            operator=step.operator if reduces else "=",
            intervals={name: intervals[name] for name in (*step.indices, *reduced)},
            value=value,
            versions={**self.versions, **more},
            step=self.number,
        )

    def _read_at_indices(self, tensor: str) -> Value:
        """Return a read of a tensor at the statement's own indices."""
        span = self.step.span
        return Read(tensor, tuple(Index(index, span) for index in self.step.indices), self.step.value.dtype, span)

    def _joined(self, left: Value, right: Value) -> Value:
        """Apply the operator of the statement to two values."""
        operator = self.step.operator
        if left.dtype == "bool":
            operator = {"min": "&&", "max": "||"}[operator]
        return Binary(operator, left, right, left.dtype, self.step.span)


def _extract_factors(step: Step) -> tuple[list[tuple[str, Value]], Value]:
    """Return factors that are constant in a sum, as (operator, value), and the rest to sum."""
    if step.operator != "+":
        return [], step.value
    factors: list[tuple[str, Value]] = []
    remaining: list[Value] = []
    _split(step.value, step.reduced, factors, remaining, step.value.dtype)
    if not factors or not remaining:
        return [], step.value
    rest = remaining[0]
    for value in remaining[1:]:
        rest = Binary("*", rest, value, step.value.dtype, Span(rest.span.start, value.span.end))
    return factors, rest


def _split(
    value: Value, reduced: tuple[str, ...], factors: list[tuple[str, Value]], remaining: list[Value], dtype: str
) -> None:
    """Split a product into constant factors and the remaining ones."""
    if isinstance(value, Binary) and value.operator == "*" and value.dtype == dtype:
        _split(value.left, reduced, factors, remaining, dtype)
        _split(value.right, reduced, factors, remaining, dtype)
    elif isinstance(value, Binary) and value.operator == "/" and is_float(dtype) and _is_constant(value.right, reduced):
        _split(value.left, reduced, factors, remaining, dtype)
        factors.append(("/", value.right))
    elif isinstance(value, Unary) and value.operator == "-" and not isinstance(value.value, Literal):
        factors.append(("-", value))
        _split(value.value, reduced, factors, remaining, dtype)
    elif _is_constant(value, reduced):
        factors.append(("*", value))
    else:
        remaining.append(value)


def _is_constant(value: Value, reduced: tuple[str, ...]) -> bool:
    """Return whether a value depends on none of the reduced indices."""
    return not any(isinstance(part, Index) and part.name in reduced for part in walk(value))


def is_product(node: Node) -> bool:
    """Return whether a node sums products of two elements, so that it reads elements repeatedly. Squares are none."""
    value = node.value
    if node.operator != "+" or not isinstance(value, Binary) or value.operator != "*":
        return False
    factors = [factor.value if isinstance(factor, Convert) else factor for factor in (value.left, value.right)]
    reads = [factor for factor in factors if isinstance(factor, Read)]
    return len(reads) == 2 and not _is_same_element(*reads)


def _is_same_element(one: Read, other: Read) -> bool:
    """Return whether two reads are of the same tensor at the same indices."""
    names = [[part.name if isinstance(part, Index) else "" for part in read.subscripts] for read in (one, other)]
    return one.tensor == other.tensor and names[0] == names[1] and "" not in names[0]
