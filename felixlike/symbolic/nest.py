"""The loop nest a symbolic program lowers to at one point: fused, and without loops of extent 1.

In: a program and values for its variables. Out: for every store the loops TVM's postprocessed schedule has, which is
what tests compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from felixlike.symbolic.evaluate import evaluate
from felixlike.symbolic.expression import Expr, Number
from felixlike.symbolic.program import PIPELINE, Fetch, Loop, Program


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
        fetch = program.fetches.get(store)  # type: ignore[call-overload]
        kept = path if fetch is None else path[: len(path) - fetch.loops]
        loops = []
        for kind in (*_BOUND, "parallel", "serial", "vector"):
            group = [_value(loop.extent, values) for loop in kept if _kind(loop, values) == kind]
            # Loops that would fuse to extent 1 stay as they are.
            if group and kind in _BOUND:
                loops.append(NestLoop(_BOUND[kind], math.prod(group)))
            elif kind == "serial" or math.prod(group) == 1:
                loops += [NestLoop("serial", extent) for extent in group]
            else:
                loops.append(NestLoop(kind, math.prod(group)))
        if fetch is not None:
            loops += _fetch_loops(fetch, values)
    if loops and unroll:
        loops[0] = NestLoop(loops[0].kind, loops[0].extent, unroll)
    return tuple(loop for loop in loops if loop.extent > 1 or loop.unroll)


_BOUND = {"blockIdx.x": "blockIdx.x", "vthread.x": "vthread.x", "threadIdx.x": "threadIdx.x", PIPELINE: "serial"}
"""The kind of loop that loops of one binding become together, outermost first."""


def _fetch_loops(fetch: Fetch, values: Mapping[str, Number]) -> list[NestLoop]:
    total, threads, vector = (_value(e, values) for e in (fetch.total, fetch.threads, fetch.vector))
    steps = -(-total // (threads * vector))
    return [NestLoop("serial", steps), NestLoop("threadIdx.x", threads), NestLoop("vector", vector)]


def _kind(loop: Loop, values: Mapping[str, Number]) -> str:
    if loop.thread:
        return loop.thread
    if _value(loop.vector, values):
        return "vector"
    return "parallel" if _value(loop.parallel, values) else "serial"


def _value(expression: Expr, values: Mapping[str, Number]) -> int:
    return round(evaluate(expression, values))
