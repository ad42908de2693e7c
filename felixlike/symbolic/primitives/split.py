"""SamplePerfectTile, Split: one loop becomes several whose extents are variables.

    for i in 512:            for i_0 in t0:
        …              →         for i_1 in t1:        with t0·t1·t2 = 512
                                     for i_2 in t2:
                                         …[i_0·t1·t2 + i_1·t2 + i_2]

On GPUs a loop is also split by numbers of threads that need not divide it; it is then split in name only, and a share
of the program says into what.

The outermost extent comes back from TVM as ⌈512 / (t1·t2)⌉; under perfect tiling that is the variable t0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expression import Expr, const
from felixlike.symbolic.primitives.primitive import Primitive
from felixlike.symbolic.variables import Variable

if TYPE_CHECKING:
    from felixlike.symbolic.replay import Replay


def _sample(state: Replay, instruction: Any, index: int) -> None:
    state.put(instruction.outputs, state.groups[index])


def _split(state: Replay, instruction: Any, _: int) -> None:
    loop, *inputs = instruction.inputs
    factors = [state.get(f) for f in inputs]
    if not all(isinstance(f, Variable) for f in factors):
        if not state.on_gpu:
            raise UnsupportedSketch("a split by something else than a perfect tile", where="Split")
        sizes = [f if isinstance(f, Expr | None) else const(int(f)) for f in factors]
        state.put(instruction.outputs, state.share(state.get(loop), sizes))
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
        # TVM cannot prove that the factors divide the extent; a perfect tile does by definition.
        disable_predication=True,
    )
    state.defer(state.schedule.get(parts[0]).extent, state.tile_vars[factors[0].name])
    state.put(instruction.outputs, list(parts))


PRIMITIVES = {"SamplePerfectTile": Primitive(_sample), "Split": Primitive(_split)}
