"""Syntax tree of a text.

Frozen classes, one per form of the grammar, with source spans. Names are not resolved: a name can be an index, a size,
a tensor or a let.
"""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.tc.source import Span


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name and its position."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. text: as written; it is a float if it has a point or an exponent, else an int32."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Name:
    """A bare name: an index, a size, a let or a tensor without dimensions."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Access:
    """A name with arguments: a tensor element or a call of a built-in function."""

    name: Identifier
    arguments: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Cast:
    """A scalar type used like a function."""

    type: Identifier
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """A unary operator: "-" or "!"."""

    operator: str
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operator, or "min" and "max", which are written as functions."""

    operator: str
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Ternary:
    """The conditional `condition ? left : right`."""

    condition: Expression
    left: Expression
    right: Expression
    span: Span


Expression = Number | Name | Access | Cast | Unary | Binary | Ternary


@dataclass(frozen=True, slots=True)
class Between:
    """The clause `index in low:high`; `high` is excluded."""

    index: Identifier
    low: Expression
    high: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    """The clause `name = value`, valid in one statement."""

    name: Identifier
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Exists:
    """The clause `exists value`. It is never evaluated; its reads bound the indices."""

    value: Expression
    span: Span


Clause = Between | Let | Exists


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement: target(indices) operator value where clauses.

    operator: "=", "+=", "*=", "min=", "max=", the last four also with "!". indices: empty without parentheses.
    """

    target: Identifier
    indices: tuple[Identifier, ...]
    operator: Identifier
    value: Expression
    clauses: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Type:
    """A type: scalar(dims). dims: sizes by name or number, empty for a scalar."""

    scalar: Identifier
    dims: tuple[Identifier | Number, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input tensor."""

    name: Identifier
    type: Type


@dataclass(frozen=True, slots=True)
class Result:
    """An output tensor. type: the type written before its name, which is only checked, or None."""

    name: Identifier
    type: Type | None


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition: def name(parameters) -> (results) { statements }."""

    name: Identifier
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    statements: tuple[Statement, ...]
    span: Span
