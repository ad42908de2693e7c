"""Statements → nodes: each computes one tensor, once, from parameters and nodes before it.

In: a program and its ranges. Out: `Node`s in order. A tensor that is written several times has a node for each; what
accumulates becomes a reduction that begins with nothing and an elementwise node that adds what was there:

    O(i) = b(i)                      O.1(i) = b(i)
    O(i) += s * A(i, k) * x(k)   →   O.2.sum(i) +=! A(i, k) * x(k)
                                     O.2(i) = O.1(i) + O.2.sum(i) * s

Factors that a sum does not change are taken out of it, so that what is summed is a plain product, as in the functions
that models are made of.
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

    name: unique.  output: the tensor of the program that it is the last version of; "" for others.  indices: one a
    dimension; reduced: those that are reduced over.  operator: of the reduction, "=" for none.  intervals: of all its
    indices.  versions: what the tensors that its value reads are called here: a parameter or a node, by their names in
    the program.  step: the number of its statement."""

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
        """Its sizes."""
        return tuple(extent(self.intervals[index]) for index in self.indices)

    def reads(self) -> Iterator[tuple[str, Read]]:
        """(parameter or node, access) for everything that it reads."""
        for value in walk(self.value):
            if isinstance(value, Read):
                yield self.versions[value.tensor], value


def extent(interval: Interval) -> int:
    """How many values there are in an interval."""
    return interval[1] - interval[0] + 1


def nodes_of(program: Program, ranges: Ranges) -> tuple[Node, ...]:
    """The nodes of a program, each after those it reads."""
    found: list[Node] = []
    names = [*(parameter.name for parameter in program.parameters), *(output.name for output in program.given)]
    versions = {name: name for name in names}
    last = {step.target: number for number, step in enumerate(program.steps)}
    for number, step in enumerate(program.steps):
        made = _Maker(step, number, ranges, versions, last[step.target] == number).made()
        found += made
        versions = {**versions, step.target: made[-1].name}
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the nodes of one statement."""

    step: Step
    number: int
    ranges: Ranges
    versions: Mapping[str, str]
    last: bool

    def made(self) -> list[Node]:
        step = self.step
        output = step.target if self.last else ""
        if not step.reduced:
            value = step.value if step.fresh else self._joined(self._own(step.target), step.value)
            return [self._node("", output, value, {})]
        factors, rest = _taken_out(step)
        if step.fresh and not factors:
            return [self._node("", output, rest, {}, reduces=True)]
        partial = self._node("sum", "", rest, {}, reduces=True)
        value = self._own(partial.name)
        for operator, factor in factors:
            if operator == "-":
                value = Unary("-", value, value.dtype, factor.span)
            else:
                value = Binary(operator, value, factor, value.dtype, factor.span)
        if not step.fresh:
            value = self._joined(self._own(step.target), value)
        return [partial, self._node("", output, value, {partial.name: partial.name})]

    def _node(self, kind: str, output: str, value: Value, more: Mapping[str, str], *, reduces: bool = False) -> Node:
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

    def _own(self, tensor: str) -> Value:
        """The statement's own element of a tensor."""
        span = self.step.span
        return Read(tensor, tuple(Index(index, span) for index in self.step.indices), self.step.value.dtype, span)

    def _joined(self, left: Value, right: Value) -> Value:
        operator = self.step.operator
        if left.dtype == "bool":
            operator = {"min": "&&", "max": "||"}[operator]
        return Binary(operator, left, right, left.dtype, self.step.span)


def _taken_out(step: Step) -> tuple[list[tuple[str, Value]], Value]:
    """Factors of a sum that none of its reduced indices changes, as (operator, value), and what is left to sum."""
    if step.operator != "+":
        return [], step.value
    factors: list[tuple[str, Value]] = []
    left: list[Value] = []
    _split(step.value, step.reduced, factors, left, step.value.dtype)
    if not factors or not left:
        return [], step.value
    rest = left[0]
    for value in left[1:]:
        rest = Binary("*", rest, value, step.value.dtype, Span(rest.span.start, value.span.end))
    return factors, rest


def _split(
    value: Value, reduced: tuple[str, ...], factors: list[tuple[str, Value]], left: list[Value], dtype: str
) -> None:
    """A product by its factors: those that stay the same, and those that do not."""
    if isinstance(value, Binary) and value.operator == "*" and value.dtype == dtype:
        _split(value.left, reduced, factors, left, dtype)
        _split(value.right, reduced, factors, left, dtype)
    elif isinstance(value, Binary) and value.operator == "/" and is_float(dtype) and _same(value.right, reduced):
        _split(value.left, reduced, factors, left, dtype)
        factors.append(("/", value.right))
    elif isinstance(value, Unary) and value.operator == "-" and not isinstance(value.value, Literal):
        factors.append(("-", value))
        _split(value.value, reduced, factors, left, dtype)
    elif _same(value, reduced):
        factors.append(("*", value))
    else:
        left.append(value)


def _same(value: Value, reduced: tuple[str, ...]) -> bool:
    return not any(isinstance(part, Index) and part.name in reduced for part in walk(value))


def is_product(node: Node) -> bool:
    """Whether a node sums up products of elements of two tensors, so that it reads each of them several times."""
    value = node.value
    if node.operator != "+" or not isinstance(value, Binary) or value.operator != "*":
        return False
    factors = [factor.value if isinstance(factor, Convert) else factor for factor in (value.left, value.right)]
    return all(isinstance(factor, Read) for factor in factors)
