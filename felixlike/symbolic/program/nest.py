"""Compute the loop nest that a symbolic program lowers to at one point: fused, and without loops of extent 1.

Input: a program and values for its variables, or a schedule. Output: the loops of every store, as in TVM's
postprocessed schedule, so that the two can be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from felixlike.frontend.constants import PACKING
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.node import Number
from felixlike.symbolic.program.loops import PIPELINE, WITHIN_BLOCK, Loop, PredicatedSplit
from felixlike.symbolic.program.program import Program

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NestLoop:
    """Describe a loop of a concrete nest.

    Attributes:
        kind: "parallel", "vector", "unrolled", "serial", or the thread that it is bound to.
        extent: The number of iterations.
        unroll: The unroll steps annotated on it; 0 for none.
    """

    kind: str
    extent: int
    unroll: int = 0


def concrete_nest(program: Program, values: Mapping[str, Number]) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """Return (block, its loops) in program order."""
    return [(store.block, _nest(program, store, path, values)) for store, path in program.stores()]


_KINDS = {0: "serial", 1: "parallel", 2: "vector", 3: "unrolled"}


def loop_kind(loop: Any) -> str:
    """Return the kind of a TVM loop, as in `NestLoop`."""
    return _KINDS.get(loop.kind) or str(loop.thread_binding.thread_tag)


def scheduled_nest(schedule: Any) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """Return (block, its loops) of a postprocessed TVM schedule, without initial stores and loops of extent 1."""
    nests: list[tuple[str, tuple[NestLoop, ...]]] = []

    def visit(stmt: Any, path: tuple[NestLoop, ...]) -> None:
        match type(stmt).__name__:
            case "For":
                unroll = stmt.annotations.get("pragma_auto_unroll_max_step", 0)
                loop = NestLoop(loop_kind(stmt), int(stmt.extent), int(unroll))
                visit(stmt.body, (*path, loop))
            case "SBlockRealize" if stmt.block.name_hint == "root":
                visit(stmt.block.body, path)
            case "SBlockRealize" if PACKING in stmt.block.annotations:
                pass  # runs once, when a model is compiled
            case "SBlockRealize":
                loops = tuple(loop for loop in path if loop.extent > 1 or loop.unroll)
                nests.append((str(stmt.block.name_hint), loops))
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, path)

    visit(schedule.mod["main"].body, ())
    return by_store(nests)


def by_store(found: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Rename values of TVM's blocks to the program's stores: initial stores are dropped, and names made unique."""
    seen: Counter[str] = Counter()
    return [
        (told_apart(name.removesuffix("_update"), seen), value) for name, value in found if not name.endswith("_init")
    ]


def told_apart(name: str, seen: Counter[str]) -> str:
    """Return a unique name, since TVM gives the same name to all blocks that one reduction is split into.

    Args:
        seen: The names so far; updated.
    """
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}'{seen[name]}"


def _nest(
    program: Program, store: object, path: tuple[Loop, ...], values: Mapping[str, Number]
) -> tuple[NestLoop, ...]:
    """Return the loops of a store at a point."""
    fused_nest = program.blankets.get(store)  # type: ignore[call-overload]
    unroll = _value(path[0].unroll, values) if path else 0
    if fused_nest is not None and _value(fused_nest.gate, values):
        total = _value(fused_nest.total, values)
        loops = [NestLoop("parallel", -(-total // fused_nest.width)), NestLoop("vector", fused_nest.width)]
    else:
        loops = _in_order(path, values)
    if loops and unroll:
        loops[0] = NestLoop(loops[0].kind, loops[0].extent, unroll)
    return tuple(loop for loop in loops if loop.extent > 1 or loop.unroll)


_FUSED = ("blockIdx.x", *WITHIN_BLOCK, PIPELINE, "parallel", "vector")
"""Kinds of neighbouring loops that are fused."""


def _in_order(path: tuple[Loop, ...], values: Mapping[str, Number]) -> list[NestLoop]:
    """Return the loops, outermost first, with neighbours of one kind fused and shares replaced by their parts."""
    loops: list[NestLoop] = []
    for kind, members in groups(path, lambda expression: _value(expression, values)):
        if isinstance(kind, PredicatedSplit):
            loops += [NestLoop(part, _value(extent, values)) for part, extent in kind.parts]
            continue
        extents = [_value(loop.extent, values) for loop in members]
        if kind in ("parallel", "vector") and math.prod(extents) == 1:
            loops += [NestLoop("serial", 1)]  # TVM does not fuse these to an extent of 1
        else:
            loops.append(NestLoop("serial" if kind == PIPELINE else kind, math.prod(extents)))
    return loops


def groups(
    path: tuple[Loop, ...], value: Callable[[Expr], int]
) -> Iterator[tuple[str | PredicatedSplit, tuple[Loop, ...]]]:
    """Yield (kind or share, the neighbouring loops that are fused or share a split), outermost first.

    Args:
        value: Returns the value of an expression at the point.
    """
    for kind, members in groupby(path, key=lambda loop: loop.share if loop.share is not None else _kind(loop, value)):
        if isinstance(kind, PredicatedSplit) or kind in _FUSED:
            yield kind, tuple(members)
        else:
            yield from ((kind, (loop,)) for loop in members)


def _kind(loop: Loop, value: Callable[[Expr], int]) -> str:
    """Return the kind of a loop at a point."""
    if loop.thread or loop.kind:
        return loop.thread or loop.kind
    if value(loop.vector):
        return "vector"
    return "parallel" if value(loop.parallel) else "serial"


def _value(expression: Expr, values: Mapping[str, Number]) -> int:
    """Return the value of an expression at a point."""
    return round(evaluate(expression, values))
