"""Statements of TIR, put together by what they do.

In: the type of indices, the lanes of a vector. Out: `Builder`, whose methods make loops, values and vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Stmt, TirExpr
from felixlike.codegen.annotations import LoopAnnotation


@dataclass(frozen=True, slots=True)
class Builder:
    """index: the type of indices.  lanes: of a vector.  scope: of the memory that values have a place in: "local" of a
    GPU's thread."""

    index: str
    lanes: int
    scope: str = "global"

    def const(self, value: int) -> TirExpr:
        """A number of the type of indices."""
        return _tvm.tirx.const(value, self.index)

    def cell(self, name: str, value: Any, statements: list[Stmt]) -> Any:
        """A value that TVM's simplifier takes as it is: inlined, what it is made of would be looked at in every index,
        for minutes.  To LLVM it is a register all the same.  statements: gets those that make it."""
        buffer = _tvm.tirx.decl_buffer((1,), self.index, name, scope=self.scope)
        value = self.const(value) if isinstance(value, int) else value
        statements += [_tvm.tirx.AllocBuffer(buffer), _tvm.tirx.BufferStore(buffer, value, [self.const(0)])]
        return buffer[self.const(0)]

    def loop(
        self,
        name: str,
        extent: Any,
        body: Callable[[Any], Stmt],
        kind: str = "SERIAL",
        mark: LoopAnnotation | None = None,
    ) -> Stmt:
        """A loop from zero on."""
        variable = _tvm.tirx.Var(name, self.index)
        extent = self.const(extent) if isinstance(extent, int) else extent
        notes = None if mark is None else {mark.key: mark.value}
        loop_kind = _tvm.tirx.ForKind[kind]
        return _tvm.tirx.For(variable, self.const(0), extent, loop_kind, body(variable), annotations=notes)

    def threads(self, tag: str, extent: Any, body: Callable[[Any], Stmt]) -> Stmt:
        """A loop whose turns are a GPU's blocks, or threads of a block.  tag: CUDA's name of them."""
        tirx = _tvm.tirx
        variable = tirx.Var(tag.replace(".", "_"), self.index)
        extent = self.const(extent) if isinstance(extent, int) else extent
        bound = tirx.IterVar(None, tirx.Var("", self.index), tirx.IterVar.ThreadIndex, tag)
        kind = tirx.ForKind.THREAD_BINDING
        return tirx.For(variable, self.const(0), extent, kind, body(variable), bound)

    def written_out(self, name: str, extent: int, body: Callable[[Any], Stmt]) -> Stmt:
        """A loop that the compiler after TVM unrolls: sources stay short."""
        loop = self.loop(name, extent, body, "UNROLLED")
        return _tvm.tirx.AttrStmt(loop.loop_var, "pragma_unroll_explicit", _tvm.tirx.const(0, "int32"), loop)

    def agreed(self, test: TirExpr, body: Stmt) -> Stmt:
        """What is done if a test holds on which all threads of a block agree: a loop of one turn or none, since TVM
        puts no barriers into tests, on which threads might differ."""
        return self.loop("once", _tvm.tirx.Cast(self.index, test), lambda _: body)

    def side_by_side(self, lanes: int, store: Callable[[Any], Stmt]) -> Stmt:
        """So many neighbours at once, of which one is no vector."""
        return store(self.const(0)) if lanes == 1 else self.loop("lane", lanes, store, "VECTORIZED")

    def vectors(self, count: Any, store: Callable[[Any], Stmt], kind: str = "UNROLLED") -> Stmt:
        """Some vectors, one after the other.  store: a column → what is done there."""

        def vector(number: Any) -> Stmt:
            return self.loop("lane", self.lanes, lambda lane: store(number * self.lanes + lane), "VECTORIZED")

        return self.loop("vector", count, vector, kind)


def seq(*statements: Stmt) -> Stmt:
    """One after the other."""
    return _tvm.tirx.stmt_seq(*statements)


def ceil_div(value: Any, by: Any) -> Any:
    """⌈value / by⌉ of numbers or expressions."""
    if isinstance(value, int) and isinstance(by, int):
        return -(-value // by)
    return _tvm.tirx.floordiv(value + (by - 1), by)


def function(params: list[Any], body: Stmt, attrs: Any) -> Any:
    """A PrimFunc that no pass schedules again."""
    func = _tvm.PrimFunc(params, body, attrs=attrs)
    func = func.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True)
    return _tvm.s_tir.renew_defs(func)
