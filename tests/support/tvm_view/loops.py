"""The loops around a store as TVM's extractor sees them, and what the program's loops are in terms of them.

    for i_0, j_0, i_1:   (parallel)         parallel p:             i_0 = p // 12, j_0 = p // 3 % 4, i_1 = p % 3
        for k:                      →           for k:

In: a program, values of its expressions. Out: for every store a nest. Loops are made when first met, one object for all
stores under it.
Follows TVM's per_store_feature.cc: loops of extent 1 are removed, unless annotated; threads of a kernel stand at its
top, in the order of their first appearance, whatever their extent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.program import PIPELINE, WITHIN_BLOCK, FullyFusedNest, Loop, PredicatedSplit, Program, Store
from felixlike.symbolic.program.nest import groups
from support.tvm_view.words import Words

Value: TypeAlias = Callable[[Expr], int]
"""The value of an expression of the program at the point."""

THREADS = ("blockIdx.x", *WITHIN_BLOCK)
"""What a loop is bound to on GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredLoop:
    """A loop of the lowered program.

    kind: "parallel", "vector", "unrolled", "serial" or the thread it is bound to.  variable: TVM's.  extent: how many
    iterations."""

    kind: str
    variable: Any
    extent: int
    said: bool = False
    """Whether the trace itself says what kind it is; then it stays even if its extent is 1."""

    @property
    def name(self) -> str:
        """The variable's name in indices; no other loop has it."""
        return str(self.variable.name)


@dataclass(slots=True, eq=False)
class Nest:
    """The loops around a store, outermost first."""

    loops: list[LoweredLoop] = field(default_factory=list)
    standing: dict[Expr, Any] = field(default_factory=dict)
    """What the loops of the program are in terms of those here; missing ones stand at 0."""
    places: dict[Expr, tuple[str, int]] = field(default_factory=dict)
    """For each loop of the program the one here that it is part of, and the steps of that one it lasts."""
    guards: list[Any] = field(default_factory=list)
    """Conditions that keep shares from running past the whole."""
    dropped: dict[Any, int] = field(default_factory=dict)
    """The variables of loops of one iteration, which TVM drops, at 0."""


class Loops:
    """All loops of a program at a point."""

    def __init__(self, program: Program, value: Value, words: Mapping[str, Words]) -> None:
        self.program, self.value = program, value
        self.words = words
        self.dtype = _loop_dtype(words)
        """TVM's integer type of loops."""
        self.analyzer = _tvm.sym.Analyzer()
        """Knows the extents of all loops."""
        self._made: dict[Any, LoweredLoop] = {}
        self._threads: dict[int, dict[str, LoweredLoop]] = {}
        """The threads of each kernel, by its outermost loop, in the order of their first appearance."""
        for _, path in program.stores():
            self._meet_threads(path)

    def nest(self, store: Store, path: tuple[Loop, ...], *, known: bool = True) -> Nest:
        """The loops of a store.

        path: those of the program.  known: whether TVM understands from the guard of a share that it does not run past
        the whole."""
        blanket = self.program.blankets.get(store)
        if blanket is not None and self.value(blanket.gate):
            return self._split(path, blanket)
        return self.grouped(path, known=known)

    def grouped(self, path: tuple[Loop, ...], *, known: bool = True) -> Nest:
        """The loops of a nest that is not fused whole, or of the outer part of one."""
        nest = Nest()
        if not path:
            return nest
        threads = self._threads[id(path[0])]
        own: list[LoweredLoop] = []
        for kind, members in groups(path, self.value):
            if isinstance(kind, PredicatedSplit):
                own += self._shared(kind, members, threads, nest, known=known)
            elif kind in threads:
                self._unfuse(members, threads[kind].variable, nest)
            else:
                own.append(self._fused(kind, members, nest))
        loops = [*threads.values(), *own]
        noted = loops[:1] if self.value(path[0].unroll) else []
        for loop in loops:
            if loop.extent > 1 or loop.kind in THREADS or loop.said or loop in noted:
                nest.loops.append(loop)
            else:
                nest.dropped[loop.variable] = 0
        return nest

    def _split(self, path: tuple[Loop, ...], blanket: FullyFusedNest) -> Nest:
        """The two loops of a nest that is fused whole; TVM keeps both, however short."""
        outer = self._loop("parallel", (path, 0), -(-self.value(blanket.total) // blanket.width))
        inner = self._loop("vector", (path, 1), blanket.width)
        nest = Nest([outer, inner])
        self._unfuse(path, outer.variable * blanket.width + inner.variable, nest)
        return nest

    def _fused(self, kind: str, members: tuple[Loop, ...], nest: Nest) -> LoweredLoop:
        """One loop for neighbouring loops of a kind. Postprocessors fuse nothing into a parallel or vector loop of
        extent 1; one that the trace itself makes stays."""
        extent = math.prod(self.value(member.extent) for member in members)
        serial = kind == PIPELINE or (extent == 1 and not members[0].kind)
        loop = self._loop("serial" if serial else kind, members, extent, said=bool(members[0].kind))
        self._unfuse(members, loop.variable, nest)
        return loop

    def _shared(
        self,
        share: PredicatedSplit,
        members: tuple[Loop, ...],
        threads: Mapping[str, LoweredLoop],
        nest: Nest,
        *,
        known: bool,
    ) -> list[LoweredLoop]:
        """The parts of a share but for those that are threads."""
        parts = [
            threads[part] if part in threads else self._loop(part, (share, number), self.value(extent))
            for number, (part, extent) in enumerate(share.parts)
        ]
        whole: Any = _tvm.tirx.const(0, self.dtype)
        for number in sorted(range(len(parts)), key=share.places.__getitem__):
            whole = whole * parts[number].extent + parts[number].variable
        total = math.prod(self.value(member.extent) for member in members)
        if math.prod(part.extent for part in parts) > total:
            nest.guards.append(whole < total)
        self._unfuse(members, whole, nest, known=known)
        return [part for part in parts if part not in threads.values()]

    def _loop(self, kind: str, key: Any, extent: int, *, said: bool = False) -> LoweredLoop:
        if key not in self._made:
            variable = _tvm.tirx.Var(f"l{len(self._made)}", self.dtype)
            self.analyzer.bind(variable, _tvm.ir.Range(0, extent))
            self._made[key] = LoweredLoop(kind, variable, extent, said)
        return self._made[key]

    def _meet_threads(self, path: tuple[Loop, ...]) -> None:
        """Make the threads that are first met around a store."""
        if not path:
            return
        threads = self._threads.setdefault(id(path[0]), {})
        for kind, members in groups(path, self.value):
            if isinstance(kind, PredicatedSplit):
                parts = [(part, self.value(extent)) for part, extent in kind.parts]
            else:
                parts = [(kind, math.prod(self.value(m.extent) for m in members))]
            for part, extent in parts:
                if part in THREADS and part not in threads:
                    threads[part] = self._loop(part, (path[0], part), extent)

    def _unfuse(self, members: tuple[Loop, ...], whole: Any, nest: Nest, *, known: bool = True) -> None:
        """The loops that one of extent Π extents stands for: all but the outermost are remainders.

        known: whether TVM knows that `whole` stays below that product; else loops of extent 1 count as outermost."""
        inner = 1
        moving = [m for m in members if self.value(m.extent) > 1]
        first = moving[:1] if known else members[:1]
        for member in reversed(moving):
            extent = self.value(member.extent)
            quotient = whole if inner == 1 else _tvm.tirx.floordiv(whole, inner)
            nest.standing[member.variable] = quotient if member in first else _tvm.tirx.floormod(quotient, extent)
            nest.places[member.variable] = (str(whole), inner)
            inner *= extent


def under_loops(body: Any, loops: list[LoweredLoop]) -> Any:
    """A statement of TVM's with the loops around it."""
    for loop in reversed(loops):
        kind, thread = _tvm.tirx.ForKind.SERIAL, None
        if loop.kind in THREADS:
            name = _tvm.tirx.Var(loop.kind, str(loop.variable.ty.dtype))
            thread = _tvm.tirx.IterVar(None, name, _tvm.tirx.IterVar.ThreadIndex, loop.kind)
            kind = _tvm.tirx.ForKind.THREAD_BINDING
        body = _tvm.tirx.For(loop.variable, 0, loop.extent, kind, body, thread)
    return body


def _loop_dtype(words: Mapping[str, Words]) -> str:
    kinds = [str(variable.ty.dtype) for said in words.values() for variable, _ in said.meaning]
    return kinds[0] if kinds else "int64"
