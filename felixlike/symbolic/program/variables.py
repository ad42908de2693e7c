"""Define schedule variables: one for each number that a trace's sampling instructions decide.

Input: a MetaSchedule trace. Output: `Variable`s in trace order, which are the columns of every matrix of points. A
fixed variable (one choice) keeps its column, so that points and traces convert both ways without a mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from felixlike.symbolic.expr.expression import Expr, const, var
from felixlike.symbolic.expr.node import Group


class Kind(StrEnum):
    """Name the decision that a variable stands for."""

    TILE = "tile"
    """A factor of a perfectly tiled loop; the factors of one loop multiply to its extent."""
    UNROLL = "unroll"
    """The largest number of unrolled steps (0: none); a point stores the number itself."""
    FETCH = "fetch"
    """The number of elements that a thread copies into shared memory at once."""
    THREADS = "threads"
    """The number of threads of a block that share a loop; it need not divide the loop."""
    LOCATION = "location"
    """Where a block is computed: -2 inlined, -1 at the root, else the index of a loop of its first consumer."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Describe one number of a schedule.

    Attributes:
        name: The name, unique within a sketch.
        kind: What the variable decides.
        extent: The extent of the tiled loop (0 for other kinds).
        choices: All values it may take on its own, ascending.
        instruction: The index of the sampling instruction in the trace; the factors of one loop share it.
        position: The position among the factors of one loop, outermost first.
        group: The group of the factors of one loop, which knows their product; None for other kinds.
    """

    name: str
    kind: Kind
    extent: int
    choices: tuple[int, ...]
    instruction: int
    position: int
    group: Group | None = None

    @property
    def shifted(self) -> bool:
        """Return whether the variable may be 0, so that its log unit is log(1 + value)."""
        return self.kind is Kind.UNROLL

    def log(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return values in log units, the coordinates of relaxed points; compute locations are returned unchanged."""
        if self.kind is Kind.LOCATION:
            return np.asarray(values, dtype=np.float64)
        logs: npt.NDArray[np.float64] = (np.log1p if self.shifted else np.log)(values)
        return logs

    @property
    def fixed(self) -> bool:
        """Return whether there is only one choice."""
        return len(self.choices) == 1

    @property
    def expression(self) -> Expr:
        """Return the variable as an expression; a constant if it is fixed."""
        if self.fixed:
            return const(self.choices[0])
        return var(self.name, self.choices[0], self.choices[-1], self.group)


def groups(variables: Sequence[Variable]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (group, columns of its variables) in order."""
    columns: dict[int, list[int]] = {}
    for column, variable in enumerate(variables):
        columns.setdefault(variable.instruction, []).append(column)
    for group, members in columns.items():
        yield group, tuple(members)
