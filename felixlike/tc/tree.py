"""The tree of a text: what was written, and where.

In: nothing. Out: frozen classes, one for each form of the grammar. Nothing is resolved here: a name may turn out to be
an index, a size, a tensor or a let.
"""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.tc.source import Span


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name that is written somewhere."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Number:
    """A literal.  text: as written; with a point or an exponent it is a float, else an int32."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Name:
    """A name by itself: an index, a size, a let or a tensor without dimensions."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Access:
    """A name with arguments: an element of a tensor, or a built-in function of them."""

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
    """operator: "-" or "!"."""

    operator: str
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """operator: as written, or "min" and "max", which are written as functions."""

    operator: str
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Ternary:
    """condition ? left : right."""

    condition: Expression
    left: Expression
    right: Expression
    span: Span


Expression = Number | Name | Access | Cast | Unary | Binary | Ternary


@dataclass(frozen=True, slots=True)
class Between:
    """index in low:high, without high."""

    index: Identifier
    low: Expression
    high: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    """name = value, for one statement."""

    name: Identifier
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Exists:
    """exists value: never computed, but what it reads bounds the indices."""

    value: Expression
    span: Span


Clause = Between | Let | Exists


@dataclass(frozen=True, slots=True)
class Statement:
    """target(indices) operator value where clauses.

    operator: "=", "+=", "*=", "min=", "max=", the last four with "!", too.  indices: None where there are no
    parentheses."""

    target: Identifier
    indices: tuple[Identifier, ...]
    operator: Identifier
    value: Expression
    clauses: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Type:
    """scalar(dims).  dims: sizes, by name or number; none for a scalar."""

    scalar: Identifier
    dims: tuple[Identifier | Number, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that is given."""

    name: Identifier
    type: Type


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that is returned.  type: what is written before its name, which is only checked."""

    name: Identifier
    type: Type | None


@dataclass(frozen=True, slots=True)
class Definition:
    """def name(parameters) -> (results) { statements }"""

    name: Identifier
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    statements: tuple[Statement, ...]
    span: Span
