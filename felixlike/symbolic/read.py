"""Read a symbolic program out of a live TVM schedule.

In: a `Replay`. Out: a `Program` before postprocessors. Raises UnsupportedSketch where an index is not affine in the
loops, which is where the formulas of this version end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from felixlike import tvmlib
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.convert import to_expr
from felixlike.symbolic.expression import Expr, at_least, const, var, variables
from felixlike.symbolic.operations import count_operations
from felixlike.symbolic.program import PIPELINE, Access, Buffer, Loop, Program, Share, Store, affine
from felixlike.symbolic.replay import Replay


def read_program(replay: Replay) -> Program:
    """The loop nest of a replayed schedule."""
    return _Reader(replay).program()


class _Reader:
    """One pass over a PrimFunc's body."""

    def __init__(self, replay: Replay) -> None:
        self._main = replay.schedule.mod["main"]
        self._tiles = dict(replay.table)
        self._pipeline, self._stages = replay.pipeline, replay.stages
        self._share_of = replay.share_of
        self._shares: dict[int, Share] = {}
        self._table: dict[Any, Expr] = dict(replay.table)
        self._loops: set[Expr] = set()
        self._loops_in: dict[Any, tuple[Expr, ...]] = {}
        """The loops that a variable of TVM's, a loop's or a block's, is made of, as TVM names them."""
        self._extents: dict[Expr, Expr] = {}
        self._fits: Expr = const(1)
        self._unit: set[Expr] = set()
        self._names: Counter[str] = Counter()
        self._buffers: dict[Any, Buffer] = {}
        self._internal: list[Any] = []

    def program(self) -> Program:
        root = self._main.body.block
        self._internal = list(root.alloc_buffers)
        if self._main.body.block.name_hint != "root":
            raise UnsupportedSketch("the function's outermost block is not a root block", where="main")
        body = self._visit(root.body)
        return Program(body, tuple(self._buffers.values()), stages=self._stages, fits=self._fits)

    def _visit(self, stmt: Any) -> tuple[Loop | Store, ...]:
        match type(stmt).__name__:
            case "For":
                return (self._loop(stmt),)
            case "SBlockRealize":
                return (self._store(stmt),)
            case "SeqStmt":
                return tuple(node for part in stmt.seq for node in self._visit(part))
        raise UnsupportedSketch(f"a statement of kind {type(stmt).__name__} is not understood", where="main")

    def _loop(self, loop: Any) -> Loop:
        extent = to_expr(loop.extent, self._table)
        if self._loops_of(extent):
            raise UnsupportedSketch(
                f"the extent of loop {loop.loop_var.name} depends on other loops", where=str(extent)
            )
        variable = var(self._unique(str(loop.loop_var.name)), 0, max(0.0, extent.high - 1))
        self._table[loop.loop_var] = variable
        self._loops.add(variable)
        self._loops_in[loop.loop_var] = (variable,)
        self._extents[variable] = extent
        if extent.is_const and extent.value == 1:
            self._unit.add(variable)
        thread = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if any(loop.loop_var.same_as(v) for v in self._pipeline):
            thread = PIPELINE
        return Loop(variable, extent, self._visit(loop.body), thread=thread, share=self._share(loop.loop_var))

    def _share(self, variable: Any) -> Share | None:
        """The share of a loop that is split in name; the same object for all its loops."""
        parts = self._share_of(variable)
        if parts is None:
            return None
        if id(parts) not in self._shares:
            self._shares[id(parts)] = Share(
                tuple((part.kind, part.extent) for part in parts), tuple(part.place for part in parts)
            )
        return self._shares[id(parts)]

    def _unique(self, name: str) -> str:
        """A name no earlier loop has; loops of different nests often share one."""
        self._names[name] += 1
        seen = self._names[name]
        return name if seen == 1 else f"{name}'{seen}"

    def _store(self, realize: Any) -> Store:
        block = realize.block
        where = f"block {block.name_hint}"
        if block.alloc_buffers or block.match_buffers:
            raise UnsupportedSketch("blocks with buffers of their own are not understood", where=where)
        if type(block.body).__name__ != "BufferStore":
            raise UnsupportedSketch(f"its body is a {type(block.body).__name__}, not one store", where=where)
        outer = dict(self._table)
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self._table[iterator.var] = to_expr(value, outer)
            self._loops_in[iterator.var] = self._named(value)
            self._note_cuts(self._table[iterator.var], to_expr(iterator.dom.extent, self._tiles))
        try:
            return self._statement(block)
        finally:
            self._table = outer

    def _note_cuts(self, value: Expr, domain: Expr) -> None:
        for variable in self._loops_of(value):
            if self._extents[variable].high > domain.high:
                self._fits = self._fits * at_least(domain - self._extents[variable], 0)

    def _statement(self, block: Any) -> Store:
        body = block.body
        loads: list[Any] = []
        tvmlib.structural_walk(body.value, (tvmlib.ir.TensorLoad, loads.append))
        target = self._element(body.buffer, body.indices, block)
        reads = Counter(self._element(load.source, load.indices, block) for load in loads)
        kinds = {0: set(), 2: set()}  # type: dict[int, set[Expr]]
        for iterator in block.iter_vars:
            kinds.setdefault(int(iterator.iter_type), set()).update(self._loops_of(self._table[iterator.var]))
        return Store(
            block=str(block.name_hint),
            target=target,
            loads=tuple(reads),
            repeats=tuple(reads.values()),
            operations=count_operations(body.value),
            spatial=frozenset(kinds[0]),
            reduction=frozenset(kinds[2]),
            is_reduction=any(int(i.iter_type) == 2 for i in block.iter_vars),
            regions=tuple(
                self._access(region.source, [r.min for r in region.region], block)
                for region in (*block.reads, *block.writes)
            ),
            text=str(body.value),
        )

    def _loops_of(self, expression: Expr) -> set[Expr]:
        return {v for v in variables([expression]) if v in self._loops}

    def _element(self, buffer: Any, indices: Any, block: Any) -> Access:
        """An access without the loops of extent 1, which some primitives drop from indices and others keep."""
        access = self._access(buffer, indices, block)
        return Access(
            access.buffer,
            tuple(index.without(self._unit.__contains__) for index in access.indices),
        )

    def _named(self, tvm_expr: Any) -> tuple[Expr, ...]:
        """The loops of a TVM expression, in the order in which it names them."""
        found: list[Expr] = []
        tvmlib.structural_walk(tvm_expr, (tvmlib.tirx.Var, lambda v: found.extend(self._loops_in.get(v, ()))))
        return tuple(dict.fromkeys(found))

    def _access(self, buffer: Any, indices: Any, block: Any) -> Access:
        found = []
        for index in indices:
            line = affine(to_expr(index, self._table), self._named(index))
            if line is None:
                raise UnsupportedSketch(
                    f"the index {index} of {buffer.name} is not affine in the loops", where=f"block {block.name_hint}"
                )
            found.append(line)
        return Access(self._buffer(buffer), tuple(found))

    def _buffer(self, buffer: Any) -> Buffer:
        if buffer not in self._buffers:
            self._buffers[buffer] = Buffer(
                name=str(buffer.name),
                shape=tuple(to_expr(extent, self._tiles) for extent in buffer.shape),
                item_bytes=_item_bytes(str(buffer.dtype)),
                internal=any(buffer.same_as(b) for b in self._internal),
                scope=str(buffer.scope()).partition(".")[0],
            )
        return self._buffers[buffer]


def _item_bytes(dtype: str) -> int:
    """Bytes of storage of one element; a bool takes one."""
    if dtype == "bool":
        return 1
    bits = int("".join(c for c in dtype.split("x")[0] if c.isdigit()) or 8)
    return max(1, bits // 8)
