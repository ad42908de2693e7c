"""Replay SampleComputeLocation, ComputeAt and ReverseComputeAt: a block moves under its consumer (or producer).

    for i: for j: P[i, j] = …          for i:
    for i: for j: C[i, j] = P[i, j]  →     for j: P[i, j] = …
                                           for j: C[i, j] = P[i, j]

The locations that TVM offers depend on the tiles (`CollectComputeLocation` in TVM's analysis.cc): it skips loops of
extent 1, data-parallel loops below a reduction, and reductions below the last data-parallel loop. Each candidate
therefore has a gate.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Instruction
from felixlike._util.wording import counted
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least
from felixlike.symbolic.expr.expression import Expr, const, var
from felixlike.symbolic.expr.traversal import variables
from felixlike.symbolic.replay.convert import to_expr
from felixlike.symbolic.replay.loops import Part, members
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import Location, ReplayState

INLINE, ROOT = -2, -1
"""Decisions of SampleComputeLocation: compute the block inline (`INLINE`), or at the root (`ROOT`)."""

_LOOP = "loop "
"""Begin of the names of loops' variables in extents."""


def _sample(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay SampleComputeLocation."""
    block = state.get(instruction.inputs[0])
    loops = _common_loops(state, block)
    candidates: list[tuple[int, Expr]] = []
    if _can_inline(state, block):
        candidates.append((INLINE, const(1)))
    candidates.append((ROOT, const(1)))
    candidates += [(i, gate) for i, gate in enumerate(_gates(state, loops)) if not (gate.is_const and gate.value == 0)]
    state.locations.append(Location(str(state.schedule.get(block).name_hint), tuple(candidates)))
    decision = state.next_location()
    if not INLINE <= decision < len(loops):
        raise UnsupportedSketch(
            f"compute location {decision} does not exist ({counted(len(loops), 'loop')})",
            where=state.locations[-1].block,
        )
    state.put(instruction.outputs, [loops[decision] if decision >= 0 else decision])


def _common_loops(state: ReplayState, block: BlockRef) -> list[Any]:
    """Return the loops that contain every consumer of the block, outermost first."""
    schedule = state.schedule
    nests = [list(schedule.get_loops(consumer)) for consumer in schedule.get_consumers(block)]
    if not nests:
        return []
    common: list[Any] = []
    for common_loops in zip(*nests, strict=False):
        first = schedule.get(common_loops[0])
        if not all(schedule.get(other).same_as(first) for other in common_loops[1:]):
            break
        common.append(common_loops[0])
    return common


def _gates(state: ReplayState, loops: list[Any]) -> list[Expr]:
    """Return, for every loop, the gate of whether TVM offers it as a location."""
    parallel = [_data_parallel(state.schedule.get(loop)) for loop in loops]
    last_parallel = max((i for i, p in enumerate(parallel) if p), default=-1)
    reduced: Expr = const(0)  # whether a reduction of extent > 1 was visited
    ended: Expr = const(0)  # whether TVM ended its search
    gates = []
    table = dict(state.table)
    for i, loop in enumerate(loops):
        statement = state.schedule.get(loop)
        extent = to_expr(statement.extent, table)
        table[statement.loop_var] = var(f"{_LOOP}{i}", 0, max(0.0, extent.high - 1))  # inner extents may depend on it
        if any(inner.name.startswith(_LOOP) for inner in variables([extent])):
            raise UnsupportedSketch("the extent of a loop depends on another loop", where=str(statement.loop_var))
        has_iterations = at_least(extent, 2)
        if parallel[i]:
            ended = _either(ended, has_iterations * reduced)
        else:
            reduced = _either(reduced, has_iterations)
            if i > last_parallel:
                ended = _either(ended, has_iterations)
        gates.append(has_iterations * (1 - ended))
    return gates


def _either(a: Expr, b: Expr) -> Expr:
    """Return the gate a or b."""
    return a + b - a * b


def _data_parallel(loop: Any) -> bool:
    """Return whether only data-parallel block iterators depend on the loop (TVM's GetLoopIterType)."""
    return all(
        _tvm.is_spatial(iterator)
        for realize in _tvm.found(loop.body, _tvm.s_tir.SBlockRealize)
        for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if _tvm.uses(value, loop.loop_var)
    )


def _can_inline(state: ReplayState, block: BlockRef) -> bool:
    """Return whether TVM would inline the block here, tried on a copy."""
    trial = state.schedule.copy()
    try:
        trial.compute_inline(trial.get_sblock(state.schedule.get(block).name_hint))
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return False
    return True


def _compute_at(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay ComputeAt."""
    block, loop = (state.get(v) for v in instruction.inputs)
    if isinstance(loop, int):
        if loop == INLINE:
            state.schedule.compute_inline(block)
        return
    state.schedule.compute_at(block, _inner(loop), preserve_unit_loops=bool(instruction.attrs[0]))
    state.tidy()


def _reverse_compute_at(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay ReverseComputeAt."""
    block, loop = (state.get(v) for v in instruction.inputs)
    state.schedule.reverse_compute_at(block, _inner(loop), preserve_unit_loops=bool(instruction.attrs[0]))
    state.tidy()


def _inner(loop: Any) -> Any:
    """Return the loop itself, or the innermost of loops recorded as fused."""
    if isinstance(loop, Part):
        raise UnsupportedSketch("a block is computed inside a loop whose split is only recorded", where="ComputeAt")
    return members(loop)[-1]


PRIMITIVES = {
    "SampleComputeLocation": Primitive(_sample, needs_regions=True),
    "ComputeAt": Primitive(_compute_at, needs_regions=True),
    "ReverseComputeAt": Primitive(_reverse_compute_at, needs_regions=True),
}
