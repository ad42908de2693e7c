"""Schedule variables: one for each number a trace's sampling instructions decide.

In: a MetaSchedule trace. Out: `Variable`s in trace order, the columns of every matrix of points. A fixed variable (one
choice) keeps its column, so that points and traces convert both ways without a mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from felixlike.symbolic.expr.expression import Expr, const, var
from felixlike.symbolic.expr.node import Group


class Kind(StrEnum):
    """What a variable decides."""

    TILE = "tile"
    """A factor of a perfectly tiled loop; the factors of one loop multiply to its extent."""
    UNROLL = "unroll"
    """The largest number of steps that are unrolled (0: none); a point holds the number itself."""
    FETCH = "fetch"
    """How many elements a thread copies at once into shared memory."""
    THREADS = "threads"
    """Threads of a block that share a loop which they need not divide."""
    LOCATION = "location"
    """Where a block is computed: -2 inlined, -1 at the root, else the index of a loop of its first consumer."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One number of a schedule.

    name: unique within a sketch.  kind: what it decides.  extent: extent of the tiled loop (0 for other kinds).
    choices: every value it may take on its own, ascending.  instruction: index of the sampling instruction in the
    trace; the factors of one loop share it.  position: its place among them, outermost first.  group: for factors,
    what they multiply to."""

    name: str
    kind: Kind
    extent: int
    choices: tuple[int, ...]
    instruction: int
    position: int
    group: Group | None = None

    @property
    def shifted(self) -> bool:
        """Whether it may be 0, so that its logarithm is that of one more."""
        return self.kind is Kind.UNROLL

    def log(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Values in log units, the coordinates of relaxed points; compute locations stay numbers."""
        if self.kind is Kind.LOCATION:
            return np.asarray(values, dtype=np.float64)
        logs: npt.NDArray[np.float64] = (np.log1p if self.shifted else np.log)(values)
        return logs

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.choices) == 1

    @property
    def expression(self) -> Expr:
        """The variable in formulas; a number where it is fixed."""
        if self.fixed:
            return const(self.choices[0])
        return var(self.name, self.choices[0], self.choices[-1], self.group)


def groups(variables: Sequence[Variable]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(group, columns of its variables) in order."""
    columns: dict[int, list[int]] = {}
    for column, variable in enumerate(variables):
        columns.setdefault(variable.instruction, []).append(column)
    for group, members in columns.items():
        yield group, tuple(members)
