"""Replay SamplePerfectTile and Split: one loop becomes several whose extents are variables.

    for i in 512:            for i_0 in t0:
        …              →         for i_1 in t1:        with t0·t1·t2 = 512
                                     for i_2 in t2:
                                         …[i_0·t1·t2 + i_1·t2 + i_2]

On GPUs, a loop is also split by numbers of threads that need not divide it. Such a split is only recorded, as a share
of the program, unless a block moves in between the new loops. On CPUs, and on GPUs if the trace says that no predicate
is needed, vectors are split off, whose length must divide the loop. The exception is a loop of constant extent on CPUs:
there a guard skips the rest.

TVM returns the outermost extent as ⌈512 / (t1·t2)⌉; under perfect tiling, that is the variable t0.
"""

from __future__ import annotations

import math
from typing import Any

from felixlike._tvm.typing import Instruction
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.expression import Expr, const, floordiv
from felixlike.symbolic.expr.node import linear_parts
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.primitives.primitive import Primitive
from felixlike.symbolic.replay.state import ReplayState


def _sample(state: ReplayState, instruction: Instruction, index: int) -> None:
    """Replay SamplePerfectTile."""
    state.put(instruction.outputs, state.groups[index])


def _split(state: ReplayState, instruction: Instruction, _: int) -> None:
    """Replay Split."""
    loop, *inputs = instruction.inputs
    factors = [state.get(f) for f in inputs]
    if not all(isinstance(f, Variable) for f in factors):
        if not state.binds_threads or bool(instruction.attrs[1]):
            state.put(instruction.outputs, _off(state, state.get(loop), factors, bool(instruction.attrs[0])))
            return
        sizes = [f if isinstance(f, Expr | None) else const(int(f)) for f in factors]
        if state.is_compute_at_target(instruction.outputs):
            parts = _guarded(state, state.get(loop), sizes, preserve_unit_iters=bool(instruction.attrs[0]))
        else:
            parts = state.share(state.get(loop), sizes)
        state.put(instruction.outputs, parts)
        return
    if all(f.fixed for f in factors):
        parts = state.schedule.split(
            state.get(loop), [f.choices[0] for f in factors], preserve_unit_iters=bool(instruction.attrs[0])
        )
        state.put(instruction.outputs, list(parts))
        return
    parts = state.schedule.split(
        state.get(loop),
        [None, *(f.choices[0] if f.fixed else state.opaque(f.name) for f in factors[1:])],
        preserve_unit_iters=bool(instruction.attrs[0]),
        # TVM cannot prove that the factors divide the extent; those of a perfect tile do by definition.
        disable_predication=True,
    )
    state.defer(state.schedule.get(parts[0]).extent, state.tile_vars[factors[0].name])
    state.put(instruction.outputs, list(parts))


def _off(state: ReplayState, loop: Any, factors: list[Any], unit_loops: bool) -> list[Any]:
    """Split by constants, all but the first."""
    outer, *sizes = factors
    if any(isinstance(f, Expr) or f is None for f in sizes) or isinstance(outer, Expr):
        raise UnsupportedSketch("a loop is split by neither constants nor a perfect tile", where="Split")
    state.settle()
    numbers = [int(f) for f in sizes]
    if state.numbers:
        return list(state.schedule.split(loop, [None, *numbers], preserve_unit_iters=unit_loops))
    extent = state.extent(loop)
    size = math.prod(numbers)
    left = floordiv(extent, size)
    constant, terms = linear_parts(extent)
    exact = all(number % size == 0 for number in (constant, *(factor for _, factor in terms)))
    if not exact and extent.is_const and outer is None:
        return _guarded(state, loop, [None, *map(const, numbers)], preserve_unit_iters=unit_loops)
    if not exact or (outer is not None and not (left.is_const and left.value == int(outer))):
        raise UnsupportedSketch(f"{size} does not always divide the loop extent {extent}", where="Split")
    parts = [None, *numbers]
    return list(state.schedule.split(loop, parts, preserve_unit_iters=unit_loops, disable_predication=True))


def _guarded(state: ReplayState, loop: Any, sizes: list[Expr | None], *, preserve_unit_iters: bool) -> list[Any]:
    """Split in TVM, with a guard, by numbers of threads or vector lengths that need not divide the extent."""
    factors = [f if f is None else int(f.value) if f.is_const else state.opaque(f.name) for f in sizes]
    parts = list(state.schedule.split(loop, factors, preserve_unit_iters=preserve_unit_iters))
    state.uneven += [state.schedule.get(part).loop_var for part in parts]
    return parts


PRIMITIVES = {"SamplePerfectTile": Primitive(_sample), "Split": Primitive(_split)}
