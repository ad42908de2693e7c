"""The name table of one statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from felixlike.tc.program import Value
from felixlike.tc.source import Span


@dataclass(slots=True)
class Names:
    """The meaning of names in one statement.

    Attributes:
        sizes: Size names of the definition.
        tensors: (dtype, rank) of parameters and of outputs written by earlier statements.
        unwritten: Outputs that no statement has written yet.
        left: Indices on the left-hand side.
        lets: Values of `let` clauses by name.
        later: Names of `let` clauses that have not been reached.
        reduced: Indices that occur elsewhere only, in order, with their positions.
    """

    sizes: Mapping[str, Span]
    tensors: Mapping[str, tuple[str, int]]
    unwritten: frozenset[str]
    left: tuple[str, ...]
    lets: dict[str, Value] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    reduced: dict[str, Span] = field(default_factory=dict)
