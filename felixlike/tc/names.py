"""What names mean in a statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from felixlike.tc.program import Value
from felixlike.tc.source import Span


@dataclass(slots=True)
class Names:
    """What names mean in a statement.

    sizes, tensors: of the definition; tensors: (type, rank) of parameters and of what was written before.  unwritten:
    outputs that no statement has written yet.  left: indices on the left.  lets: values by name.  later: names of lets
    that are not there yet.  reduced: indices that were met elsewhere, in order, with the place."""

    sizes: Mapping[str, Span]
    tensors: Mapping[str, tuple[str, int]]
    unwritten: frozenset[str]
    left: tuple[str, ...]
    lets: dict[str, Value] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    reduced: dict[str, Span] = field(default_factory=dict)
