"""Build a sketch's program for one choice of compute locations.

Input: a task, a sketch's trace, and the choice. Output: `Structure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from felixlike._tvm.typing import Trace
from felixlike.frontend.task import Task
from felixlike.symbolic.expr.comparison import at_most
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import Program
from felixlike.symbolic.program.constraints import Constraint
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.postprocessors import modelled, refusals
from felixlike.symbolic.replay.read import read_program
from felixlike.symbolic.replay.replay import replay
from felixlike.symbolic.replay.state import Location


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """Hold the program for one choice of compute locations.

    Attributes:
        locations: The choice, one number for each location variable.
        program: The symbolic program.
        offered: The candidates of each location variable.
        limits: The device's limits for the kernel: those of a GPU, or of vector registers.
        gate: 1 for tiles with which TVM accepts the choice unchanged, 0 if it moves or refuses the blocks.
    """

    locations: tuple[int, ...]
    program: Program
    offered: tuple[Location, ...]
    limits: tuple[Constraint, ...]
    gate: Expr

    @property
    def moved(self) -> bool:
        """Return whether blocks moved into symbolic loops: by choice, or because the trace states its loops' kinds."""
        has_loop_kinds = any(loop.kind for _, path in self.program.stores() for loop in path)
        return has_loop_kinds or any(place != -1 for place in self.locations)


def read_structure(
    task: Task, trace: Trace, variables: Sequence[Variable], postprocessors: Sequence[str], chosen: tuple[int, ...]
) -> Structure:
    """Return the structure of a choice of compute locations.

    Args:
        task: The task.
        trace: The sketch's trace.
        variables: The sketch's variables.
        postprocessors: The names of the postprocessors.
        chosen: One number for each location variable.

    Raises:
        UnsupportedSketch: If the trace cannot be read as a symbolic program.
    """
    state = replay(task.module, task.target, trace, variables, chosen)
    program = modelled(read_program(state), state, task, postprocessors)
    gate = program.fits
    for decision, location in zip(chosen, state.locations, strict=True):
        gate = gate * dict(location.candidates).get(decision, const(0))
    limits = refusals(program, state, task, postprocessors)
    for limit in limits:
        gate = gate * at_most(limit.formula, 0)
    return Structure(chosen, program, tuple(state.locations), limits, gate)
