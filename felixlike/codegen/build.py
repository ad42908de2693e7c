"""Helpers that build TIR statements.

Input: the index type, the lanes of a vector. Output: `Builder`, whose methods create loops, values and vectors.
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
    """Builds TIR statements.

    Attributes:
        index: Index type.
        lanes: Elements of a vector.
        scope: Memory scope of `cell` values: "global", or "local" for a GPU thread.
    """

    index: str
    lanes: int
    scope: str = "global"

    def const(self, value: int) -> TirExpr:
        """Return a constant of the index type."""
        return _tvm.tirx.const(value, self.index)

    def cell(self, name: str, value: Any, statements: list[Stmt]) -> Any:
        """Store a value in a one-element buffer and return its load; append the statements to `statements`.

        TVM's simplifier treats the load as opaque. An inlined expression would be simplified again in every index,
        which takes minutes. LLVM turns the buffer into a register.
        """
        value = self.const(value) if isinstance(value, int) else value
        buffer = _tvm.tirx.decl_buffer((1,), str(value.ty.dtype), name, scope=self.scope)
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
        """Return a loop from zero. mark: A loop annotation."""
        variable = _tvm.tirx.Var(name, self.index)
        extent = self.const(extent) if isinstance(extent, int) else extent
        loop_annotations = None if mark is None else {mark.key: mark.value}
        loop_kind = _tvm.tirx.ForKind[kind]
        return _tvm.tirx.For(variable, self.const(0), extent, loop_kind, body(variable), annotations=loop_annotations)

    def threads(self, tag: str, extent: Any, body: Callable[[Any], Stmt]) -> Stmt:
        """Return a loop over GPU blocks, or over threads of a block. tag: CUDA's name, such as threadIdx.x."""
        tirx = _tvm.tirx
        variable = tirx.Var(tag.replace(".", "_"), self.index)
        extent = self.const(extent) if isinstance(extent, int) else extent
        bound = tirx.IterVar(None, tirx.Var("", self.index), tirx.IterVar.ThreadIndex, tag)
        kind = tirx.ForKind.THREAD_BINDING
        return tirx.For(variable, self.const(0), extent, kind, body(variable), bound)

    def written_out(self, name: str, extent: int, body: Callable[[Any], Stmt]) -> Stmt:
        """Return a loop that the compiler after TVM unrolls, which keeps sources short."""
        loop = self.loop(name, extent, body, "UNROLLED")
        return _tvm.tirx.AttrStmt(loop.loop_var, "pragma_unroll_explicit", _tvm.tirx.const(0, "int32"), loop)

    def agreed(self, test: TirExpr, body: Stmt) -> Stmt:
        """Return a branch whose test is uniform across the threads of a block, as a loop with one or no iteration.

        TVM does not insert barriers into an if, since its test might differ between threads.
        """
        return self.loop("once", _tvm.tirx.Cast(self.index, test), lambda _: body)

    def side_by_side(self, lanes: int, store: Callable[[Any], Stmt]) -> Stmt:
        """Return a vectorized loop over `lanes` neighbours, or a scalar store for one."""
        return store(self.const(0)) if lanes == 1 else self.loop("lane", lanes, store, "VECTORIZED")

    def vectors(self, count: Any, store: Callable[[Any], Stmt], kind: str = "UNROLLED") -> Stmt:
        """Return a loop over `count` vectors. store: Maps a column to its statement."""

        def vector(number: Any) -> Stmt:
            return self.loop("lane", self.lanes, lambda lane: store(number * self.lanes + lane), "VECTORIZED")

        return self.loop("vector", count, vector, kind)


def seq(*statements: Stmt) -> Stmt:
    """Return a sequence of statements."""
    return _tvm.tirx.stmt_seq(*statements)


_L2_LOCALITY = 2
"""LLVM's locality of a prefetch into the L2 cache."""


def prefetched(element: TirExpr) -> Stmt:
    """Return an instruction that prefetches an element. It reads nothing, so the element may be past the end."""
    address = _tvm.tirx.address_of(element)
    return _tvm.tirx.Evaluate(_tvm.tirx.call_intrin("void", "tirx.prefetch", address, 0, _L2_LOCALITY, 1))


def named(name: str, value: TirExpr) -> tuple[Any, Stmt]:
    """Return a new variable, and the statement that binds it to a value."""
    variable = _tvm.tirx.Var(name, value.ty)
    return variable, _tvm.tirx.Bind(variable, value)


def ceil_div(value: Any, by: Any) -> Any:
    """Return ⌈value / by⌉ of numbers or expressions."""
    if isinstance(value, int) and isinstance(by, int):
        return -(-value // by)
    return _tvm.tirx.floordiv(value + (by - 1), by)


def function(params: list[Any], body: Stmt, attrs: Any) -> Any:
    """Return a PrimFunc that no pass schedules again."""
    func = _tvm.PrimFunc(params, body, attrs=attrs)
    func = func.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True)
    return _tvm.s_tir.renew_defs(func)
