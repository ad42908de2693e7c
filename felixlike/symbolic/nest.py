"""The loop nest a symbolic program lowers to at one point: fused, and without loops of extent 1.

In: a program and values for its variables. Out: for every store the loops TVM's postprocessed schedule has, which is
what tests compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from felixlike.symbolic.evaluate import evaluate
from felixlike.symbolic.expression import Expr, Number
from felixlike.symbolic.program import PIPELINE, Loop, Program, Share


@dataclass(frozen=True, slots=True)
class NestLoop:
    """kind: "parallel", "vector", "serial" or the thread it is bound to.  extent: iterations.  unroll: steps noted on
    it, 0 for none."""

    kind: str
    extent: int
    unroll: int = 0


def concrete_nest(program: Program, values: Mapping[str, Number]) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """(block, its loops) in program order."""
    return [(store.block, _nest(program, store, path, values)) for store, path in program.stores()]


def _nest(
    program: Program, store: object, path: tuple[Loop, ...], values: Mapping[str, Number]
) -> tuple[NestLoop, ...]:
    blanket = program.blankets.get(store)  # type: ignore[call-overload]
    unroll = _value(path[0].unroll, values) if path else 0
    if blanket is not None and _value(blanket.gate, values):
        total = _value(blanket.total, values)
        loops = [NestLoop("parallel", -(-total // blanket.width)), NestLoop("vector", blanket.width)]
    else:
        loops = _in_order(path, values)
    if loops and unroll:
        loops[0] = NestLoop(loops[0].kind, loops[0].extent, unroll)
    return tuple(loop for loop in loops if loop.extent > 1 or loop.unroll)


_FUSED = ("blockIdx.x", "vthread.x", "threadIdx.x", PIPELINE, "parallel", "vector")
"""Kinds of neighbouring loops that become one."""


def _in_order(path: tuple[Loop, ...], values: Mapping[str, Number]) -> list[NestLoop]:
    """The loops from the outside inwards, neighbours of one kind fused, shares replaced by their parts."""
    found: list[NestLoop] = []
    for kind, members in groupby(path, key=lambda loop: loop.share if loop.share is not None else _kind(loop, values)):
        if isinstance(kind, Share):
            found += [NestLoop(part, _value(extent, values)) for part, extent in kind.parts]
            continue
        extents = [_value(loop.extent, values) for loop in members]
        if kind not in _FUSED:
            found += [NestLoop(kind, extent) for extent in extents]
        elif kind in ("parallel", "vector") and math.prod(extents) == 1:
            found += [NestLoop("serial", 1)]  # these are not fused to an extent of 1
        else:
            found.append(NestLoop("serial" if kind == PIPELINE else kind, math.prod(extents)))
    return found


def _kind(loop: Loop, values: Mapping[str, Number]) -> str:
    if loop.thread:
        return loop.thread
    if _value(loop.vector, values):
        return "vector"
    return "parallel" if _value(loop.parallel, values) else "serial"


def _value(expression: Expr, values: Mapping[str, Number]) -> int:
    return round(evaluate(expression, values))
