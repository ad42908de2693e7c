"""A checked definition with resolved names and types, the input of all later stages.

Frozen classes only. Values are compared by identity, since a let puts one value into several places. Each value has a
dtype and a source span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from felixlike.errors import FelixlikeWarning
from felixlike.tc.source import Source, Span


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number. `value` is an int for integer types and a float for float types."""

    value: int | float
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The value of an index, an int32."""

    name: str
    span: Span
    dtype: str = "int32"


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """The value of a size, an int32."""

    name: str
    span: Span
    dtype: str = "int32"


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A tensor element, as left by earlier statements."""

    tensor: str
    subscripts: tuple[Value, ...]
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Convert:
    """A conversion to another type. written: whether it is an explicit cast rather than a type match."""

    value: Value
    dtype: str
    span: Span
    written: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unary:
    """A unary operator: "-" or "!"."""

    operator: str
    value: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A binary operator: + - * / % min max, a comparison, && or ||. Both operands have the same type."""

    operator: str
    left: Value
    right: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Choose:
    """The conditional `condition ? left : right`; only one of the two is evaluated."""

    condition: Value
    left: Value
    right: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a built-in function; arguments have the type of the result."""

    function: str
    arguments: tuple[Value, ...]
    dtype: str
    span: Span


Value = Literal | Index | Size | Read | Convert | Unary | Binary | Choose | Call


def children(value: Value) -> tuple[Value, ...]:
    """Return the operands of a value."""
    match value:
        case Read():
            return value.subscripts
        case Call():
            return value.arguments
        case Convert() | Unary():
            return (value.value,)
        case Binary():
            return (value.left, value.right)
        case Choose():
            return (value.condition, value.left, value.right)
        case _:
            return ()


def walk(*values: Value) -> Iterator[Value]:
    """Yield all values inside the given ones, each once, in preorder from left to right."""
    seen: set[int] = set()
    stack = list(reversed(values))
    while stack:
        value = stack.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            stack.extend(reversed(children(value)))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter. dims: names of sizes or numbers. span: position of its name."""

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that is returned.

    Attributes:
        name: Its name.
        dtype: Element type.
        rank: Number of dimensions.
        given: Whether the caller passes its initial contents, since the first statement that writes it accumulates
            into it or reads it.
        span: Position of its name.
    """

    name: str
    dtype: str
    rank: int
    given: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    Attributes:
        target: The tensor that is written.
        indices: Indices on the left-hand side.
        reduced: Indices that occur elsewhere only, in order of first use.
        operator: "=", "+", "*", "min" or "max".
        fresh: Whether earlier contents are ignored: "=" and the forms with "!".
        value: The right-hand side.
        ranges: Lower and upper bound from `where`, by index.
        witnesses: Values of `exists`, which bound indices.
        first: Whether it is the first statement that writes its target.
        span: Position of the statement.
        index_spans: Position of each index.
    """

    target: str
    indices: tuple[str, ...]
    reduced: tuple[str, ...]
    operator: str
    fresh: bool
    value: Value
    ranges: Mapping[str, tuple[Value, Value]]
    witnesses: tuple[Value, ...]
    first: bool
    span: Span
    index_spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class Note:
    """Something in a definition that is likely a mistake.

    Attributes:
        words: What it is, and the line.
        category: The class of the warning.
    """

    words: str
    category: type[FelixlikeWarning]


@dataclass(frozen=True, slots=True)
class Program:
    """One checked definition.

    Attributes:
        source: Its text.
        name: Its name.
        parameters: Its inputs, in order.
        sizes: Names of its sizes, in order.
        outputs: Its outputs, in order.
        steps: Its statements, in order.
        notes: What is likely a mistake.
    """

    source: Source
    name: str
    parameters: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    notes: tuple[Note, ...]

    @property
    def given(self) -> tuple[Output, ...]:
        """The outputs whose initial contents the caller passes."""
        return tuple(output for output in self.outputs if output.given)
