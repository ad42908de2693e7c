"""A definition whose names and types are settled: what all later steps work on.

In: nothing. Out: frozen classes. Values are compared by identity, since lets put one value into several places; every
value knows its type and where it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from felixlike.tc.source import Source, Span


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number.  value: an int for integers, a float for floats."""

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
    """An element of a tensor, as statements before have left it."""

    tensor: str
    subscripts: tuple[Value, ...]
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Convert:
    """A value in another type.  written: as a cast, rather than by matching types."""

    value: Value
    dtype: str
    span: Span
    written: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unary:
    """operator: "-" or "!"."""

    operator: str
    value: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """operator: + - * / % min max, a comparison, && or ||; both operands of one type."""

    operator: str
    left: Value
    right: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Choose:
    """condition ? left : right, of which only one is computed."""

    condition: Value
    left: Value
    right: Value
    dtype: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A built-in function of values of its type."""

    function: str
    arguments: tuple[Value, ...]
    dtype: str
    span: Span


Value = Literal | Index | Size | Read | Convert | Unary | Binary | Choose | Call


def children(value: Value) -> tuple[Value, ...]:
    """The values that a value is made of."""
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
    """All values that values are made of, each once, those inside others after them, from left to right."""
    seen: set[int] = set()
    at = list(reversed(values))
    while at:
        value = at.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            at.extend(reversed(children(value)))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter.  dims: a size by name, or a number.  span: of its name."""

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that is returned.  given: the caller gives its first contents, since the first statement that writes
    it accumulates.  span: of its name."""

    name: str
    dtype: str
    rank: int
    given: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    indices: on the left.  reduced: indices that stand elsewhere only, in order of their first use.  operator: "=",
    "+", "*", "min" or "max".  fresh: begins with nothing, whatever the tensor held ("=" and the forms with "!").
    ranges: of `where`, by index.  witnesses: values of `exists`, which bound indices.  first: the first one that
    writes its tensor."""

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
class Program:
    """One definition, checked.  sizes: their names, in order.  notes: what looks like a slip, in words."""

    source: Source
    name: str
    parameters: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    @property
    def given(self) -> tuple[Output, ...]:
        """Outputs that the caller gives, to be accumulated into."""
        return tuple(output for output in self.outputs if output.given)
