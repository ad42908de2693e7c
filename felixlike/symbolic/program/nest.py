"""The loop nest a symbolic program lowers to at one point: fused, and without loops of extent 1.

In: a program and values for its variables; or a schedule. Out: for every store the loops TVM's postprocessed schedule
has, which is what is compared.
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
    """kind: "parallel", "vector", "unrolled", "serial" or the thread it is bound to.  extent: iterations.  unroll:
    steps noted on it, 0 for none."""

    kind: str
    extent: int
    unroll: int = 0


def concrete_nest(program: Program, values: Mapping[str, Number]) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """(block, its loops) in program order."""
    return [(store.block, _nest(program, store, path, values)) for store, path in program.stores()]


_KINDS = {0: "serial", 1: "parallel", 2: "vector", 3: "unrolled"}


def loop_kind(loop: Any) -> str:
    """The kind of a TVM loop, see `NestLoop`."""
    return _KINDS.get(loop.kind) or str(loop.thread_binding.thread_tag)


def scheduled_nest(schedule: Any) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """(block, its loops) of a postprocessed TVM schedule, without initial stores and loops of extent 1."""
    found: list[tuple[str, tuple[NestLoop, ...]]] = []

    def visit(stmt: Any, path: tuple[NestLoop, ...]) -> None:
        match type(stmt).__name__:
            case "For":
                note = stmt.annotations.get("pragma_auto_unroll_max_step", 0)
                loop = NestLoop(loop_kind(stmt), int(stmt.extent), int(note))
                visit(stmt.body, (*path, loop))
            case "SBlockRealize" if stmt.block.name_hint == "root":
                visit(stmt.block.body, path)
            case "SBlockRealize" if PACKING in stmt.block.annotations:
                pass  # done when a model is compiled
            case "SBlockRealize":
                kept = tuple(loop for loop in path if loop.extent > 1 or loop.unroll)
                found.append((str(stmt.block.name_hint), kept))
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, path)

    visit(schedule.mod["main"].body, ())
    return by_store(found)


def by_store(found: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """What is known of TVM's blocks, under the names of a program's stores: without initial stores, and told apart."""
    seen: Counter[str] = Counter()
    return [
        (told_apart(name.removesuffix("_update"), seen), value) for name, value in found if not name.endswith("_init")
    ]


def told_apart(name: str, seen: Counter[str]) -> str:
    """A name that no other has: TVM gives all blocks that one reduction is split into the same.  seen: those so far."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}'{seen[name]}"


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


_FUSED = ("blockIdx.x", *WITHIN_BLOCK, PIPELINE, "parallel", "vector")
"""Kinds of neighbouring loops that become one."""


def _in_order(path: tuple[Loop, ...], values: Mapping[str, Number]) -> list[NestLoop]:
    """The loops from the outside inwards, neighbours of one kind fused, shares replaced by their parts."""
    found: list[NestLoop] = []
    for kind, members in groups(path, lambda expression: _value(expression, values)):
        if isinstance(kind, PredicatedSplit):
            found += [NestLoop(part, _value(extent, values)) for part, extent in kind.parts]
            continue
        extents = [_value(loop.extent, values) for loop in members]
        if kind in ("parallel", "vector") and math.prod(extents) == 1:
            found += [NestLoop("serial", 1)]  # these are not fused to an extent of 1
        else:
            found.append(NestLoop("serial" if kind == PIPELINE else kind, math.prod(extents)))
    return found


def groups(
    path: tuple[Loop, ...], value: Callable[[Expr], int]
) -> Iterator[tuple[str | PredicatedSplit, tuple[Loop, ...]]]:
    """(kind or share, the neighbouring loops that become one, or the parts of a share), from the outside inwards.

    value: what an expression is at the point."""
    for kind, members in groupby(path, key=lambda loop: loop.share if loop.share is not None else _kind(loop, value)):
        if isinstance(kind, PredicatedSplit) or kind in _FUSED:
            yield kind, tuple(members)
        else:
            yield from ((kind, (loop,)) for loop in members)


def _kind(loop: Loop, value: Callable[[Expr], int]) -> str:
    if loop.thread or loop.kind:
        return loop.thread or loop.kind
    if value(loop.vector):
        return "vector"
    return "parallel" if value(loop.parallel) else "serial"


def _value(expression: Expr, values: Mapping[str, Number]) -> int:
    return round(evaluate(expression, values))
