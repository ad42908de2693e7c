"""A sketch's program for one choice of compute locations.

In: a task, a sketch's trace, the choice. Out: `Structure`.
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
    """The program for one choice of compute locations.

    locations: the choice, one number for each location variable.  offered: what each of them could have chosen.
    limits: what a kernel may ask of a GPU, or of vector registers.  gate: for which tiles TVM accepts the choice as it
    is (1) instead of moving or refusing it (0)."""

    locations: tuple[int, ...]
    program: Program
    offered: tuple[Location, ...]
    limits: tuple[Constraint, ...]
    gate: Expr

    @property
    def moved(self) -> bool:
        """Whether blocks have moved into symbolic loops: by choice, or in a trace that says how its loops are run."""
        told = any(loop.kind for _, path in self.program.stores() for loop in path)
        return told or any(place != -1 for place in self.locations)


def read_structure(
    task: Task, trace: Trace, variables: Sequence[Variable], postprocessors: Sequence[str], chosen: tuple[int, ...]
) -> Structure:
    """The structure of a choice, one number for each location variable.  postprocessors: their names.

    Raises UnsupportedSketch."""
    state = replay(task.module, task.target, trace, variables, chosen)
    program = modelled(read_program(state), state, task, postprocessors)
    gate = program.fits
    for decision, location in zip(chosen, state.locations, strict=True):
        gate = gate * dict(location.candidates).get(decision, const(0))
    limits = refusals(program, state, task, postprocessors)
    for limit in limits:
        gate = gate * at_most(limit.formula, 0)
    return Structure(chosen, program, tuple(state.locations), limits, gate)
