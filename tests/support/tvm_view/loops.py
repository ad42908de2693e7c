"""The loops around a store as TVM's extractor sees them, and the program's loops in terms of these loops.

    for i_0, j_0, i_1:   (parallel)         parallel p:             i_0 = p // 12, j_0 = p // 3 % 4, i_1 = p % 3
        for k:                      →           for k:

Input: a program and the values of its expressions. Output: a nest for every store. Each loop is created once and shared
by all stores under it.
Follows TVM's per_store_feature.cc: loops of extent 1 are removed unless they are annotated. The thread axes of a kernel
are its outermost loops, in the order of their first appearance, whatever their extent.
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
"""Returns the value of an expression of the program at the point."""

THREADS = ("blockIdx.x", *WITHIN_BLOCK)
"""Thread axes of GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredLoop:
    """A loop of the lowered program.

    Attributes:
        kind: "parallel", "vector", "unrolled", "serial" or the thread axis it is bound to.
        variable: TVM's loop variable.
        extent: number of iterations."""

    kind: str
    variable: Any
    extent: int
    said: bool = False
    """Whether the trace itself sets the kind; then the loop remains even if its extent is 1."""

    @property
    def name(self) -> str:
        """Name of the variable in indices, which is unique."""
        return str(self.variable.name)


@dataclass(slots=True, eq=False)
class Nest:
    """The loops around a store, outermost first."""

    loops: list[LoweredLoop] = field(default_factory=list)
    standing: dict[Expr, Any] = field(default_factory=dict)
    """The program's loop variables as expressions of the loops here; missing ones are 0."""
    places: dict[Expr, tuple[str, int]] = field(default_factory=dict)
    """For each loop of the program, the name of the loop here that contains it, and its step within that loop."""
    guards: list[Any] = field(default_factory=list)
    """Conditions that keep shares within the fused extent."""
    dropped: dict[Any, int] = field(default_factory=dict)
    """Variables of loops of one iteration, which TVM drops, mapped to 0."""


class Loops:
    """All loops of a program at a point."""

    def __init__(self, program: Program, value: Value, words: Mapping[str, Words]) -> None:
        self.program, self.value = program, value
        self.words = words
        self.dtype = _loop_dtype(words)
        """TVM's integer type of loop variables."""
        self.analyzer = _tvm.sym.Analyzer()
        """An analyzer with the extents of all loops."""
        self._created: dict[Any, LoweredLoop] = {}
        self._threads: dict[int, dict[str, LoweredLoop]] = {}
        """Thread axes of each kernel, keyed by its outermost loop, in the order of their first appearance."""
        for _, path in program.stores():
            self._meet_threads(path)

    def nest(self, store: Store, path: tuple[Loop, ...], *, known: bool = True) -> Nest:
        """Return the loops of a store.

        Args:
            store: the store.
            path: the program's loops around it.
            known: whether TVM infers from the guard of a share that it stays within the fused extent."""
        blanket = self.program.blankets.get(store)
        if blanket is not None and self.value(blanket.gate):
            return self._split(path, blanket)
        return self.grouped(path, known=known)

    def grouped(self, path: tuple[Loop, ...], *, known: bool = True) -> Nest:
        """Return the loops of a nest that is not fully fused, or of the outer part of a nest."""
        nest = Nest()
        if not path:
            return nest
        threads = self._threads[id(path[0])]
        remaining: list[LoweredLoop] = []
        for kind, members in groups(path, self.value):
            if isinstance(kind, PredicatedSplit):
                remaining += self._shared(kind, members, threads, nest, known=known)
            elif kind in threads:
                self._unfuse(members, threads[kind].variable, nest)
            else:
                remaining.append(self._fused(kind, members, nest))
        loops = [*threads.values(), *remaining]
        annotated = loops[:1] if self.value(path[0].unroll) else []
        for loop in loops:
            if loop.extent > 1 or loop.kind in THREADS or loop.said or loop in annotated:
                nest.loops.append(loop)
            else:
                nest.dropped[loop.variable] = 0
        return nest

    def _split(self, path: tuple[Loop, ...], blanket: FullyFusedNest) -> Nest:
        """Return the two loops of a fully fused nest. TVM keeps both, whatever their extent."""
        outer = self._loop("parallel", (path, 0), -(-self.value(blanket.total) // blanket.width))
        inner = self._loop("vector", (path, 1), blanket.width)
        nest = Nest([outer, inner])
        self._unfuse(path, outer.variable * blanket.width + inner.variable, nest)
        return nest

    def _fused(self, kind: str, members: tuple[Loop, ...], nest: Nest) -> LoweredLoop:
        """Return one loop for neighbouring loops of one kind.

        Postprocessors create no parallel or vector loop of extent 1; a loop whose kind the trace sets remains."""
        extent = math.prod(self.value(member.extent) for member in members)
        serial = kind == PIPELINE or (extent == 1 and not members[0].kind)
        set_by_trace = bool(members[0].kind) or any(member.annotated for member in members)
        loop = self._loop("serial" if serial else kind, members, extent, set_by_trace=set_by_trace)
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
        """Return the parts of a share that are not thread axes."""
        parts = [
            threads[part] if part in threads else self._loop(part, (share, number), self.value(extent))
            for number, (part, extent) in enumerate(share.parts)
        ]
        position: Any = _tvm.tirx.const(0, self.dtype)
        for number in sorted(range(len(parts)), key=share.places.__getitem__):
            position = position * parts[number].extent + parts[number].variable
        total = math.prod(self.value(member.extent) for member in members)
        if math.prod(part.extent for part in parts) > total:
            nest.guards.append(position < total)
        self._unfuse(members, position, nest, known=known)
        return [part for part in parts if part not in threads.values()]

    def _loop(self, kind: str, key: Any, extent: int, *, set_by_trace: bool = False) -> LoweredLoop:
        if key not in self._created:
            variable = _tvm.tirx.Var(f"l{len(self._created)}", self.dtype)
            self.analyzer.bind(variable, _tvm.ir.Range(0, extent))
            self._created[key] = LoweredLoop(kind, variable, extent, set_by_trace)
        return self._created[key]

    def _meet_threads(self, path: tuple[Loop, ...]) -> None:
        """Create the thread axes that first appear around a store."""
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

    def _unfuse(self, members: tuple[Loop, ...], fused_index: Any, nest: Nest, *, known: bool = True) -> None:
        """Record the program's loops that a fused loop stands for; all except the outermost are remainders.

        Args:
            members: the fused loops.
            fused_index: the index of the fused loop.
            nest: the nest to update.
            known: whether TVM knows that `fused_index` is below the product of all extents; if not, `members[0]`
                counts as outermost even if its extent is 1."""
        inner = 1
        moving = [m for m in members if self.value(m.extent) > 1]
        first = moving[:1] if known else members[:1]
        for member in reversed(moving):
            extent = self.value(member.extent)
            quotient = fused_index if inner == 1 else _tvm.tirx.floordiv(fused_index, inner)
            nest.standing[member.variable] = quotient if member in first else _tvm.tirx.floormod(quotient, extent)
            nest.places[member.variable] = (str(fused_index), inner)
            inner *= extent


def under_loops(body: Any, loops: list[LoweredLoop]) -> Any:
    """Wrap a TVM statement in loops."""
    for loop in reversed(loops):
        kind, thread = _tvm.tirx.ForKind.SERIAL, None
        if loop.kind in THREADS:
            name = _tvm.tirx.Var(loop.kind, str(loop.variable.ty.dtype))
            thread = _tvm.tirx.IterVar(None, name, _tvm.tirx.IterVar.ThreadIndex, loop.kind)
            kind = _tvm.tirx.ForKind.THREAD_BINDING
        body = _tvm.tirx.For(loop.variable, 0, loop.extent, kind, body, thread)
    return body


def _loop_dtype(words: Mapping[str, Words]) -> str:
    kinds = [str(variable.ty.dtype) for statement in words.values() for variable, _ in statement.meaning]
    return kinds[0] if kinds else "int64"
