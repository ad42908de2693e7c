"""Buffers that are accessed in groups: how TVM allocates them, and what it then writes for their indices.

In: a program, its loops at a point. Out: for every such buffer its shape and the indices of all accesses, where they
are known. Loops around the allocation stay in indices, and more than is used is allocated, where TVM's simplifier does
not find where groups begin. So its passes see the loops of the point with these accesses alone.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike.symbolic.program import Access, Buffer, Loop, Program, Remainder, Store
from support.tvm_view.loops import Loops, under_loops
from support.tvm_view.terms import Terms
from support.tvm_view.written import Written, from_tvm

_Use: TypeAlias = "tuple[Store, tuple[Loop, ...], Access]"
_Indices: TypeAlias = "dict[tuple[Store, Access], tuple[Written, ...]]"


class Grouped:
    """The buffers of a program that are accessed in groups and whose allocation is known.

    terms: in terms of nests of `loops`."""

    def __init__(self, program: Program, loops: Loops, terms: Terms) -> None:
        self._loops, self._terms = loops, terms
        self.shapes: dict[Buffer, tuple[int, ...]] = {}
        """As TVM allocates them."""
        self.indices: dict[tuple[Store, Access, bool], tuple[Written, ...]] = {}
        """What TVM writes for an access; the last of the key is whether TVM understands the guard of a share."""
        for buffer in program.buffers:
            if not buffer.grouped:
                continue
            uses = [(s, p, a) for s, p in program.stores() for a in dict.fromkeys(s.accesses) if a.buffer is buffer]
            if not any(_windowed(access) for _, _, access in uses):
                self._allocate(buffer, uses)

    def _allocate(self, buffer: Buffer, uses: list[_Use]) -> None:
        """Find how TVM allocates a buffer. Where that hangs on whether TVM understands the guard of a share, nothing
        is known."""
        shape, indices = self._compacted(buffer, uses, known=True)
        uneven = any(loop.share is not None for _, path, _ in uses for loop in path)
        other, others = self._compacted(buffer, uses, known=False) if uneven else (shape, indices)
        read = [(s, a) for s, _, a in uses if a is not s.target]
        if other == shape and all(others[key] == indices[key] for key in read):
            self.shapes[buffer] = shape
            self.indices |= {(*key, True): said for key, said in indices.items()}
            self.indices |= {(*key, False): said for key, said in others.items()}

    def _compacted(self, buffer: Buffer, uses: list[_Use], *, known: bool) -> tuple[tuple[int, ...], _Indices]:
        """The shape that TVM gives a buffer, and the indices it writes."""
        nests = [self._loops.nest(store, path, known=known) for store, path, _ in uses]
        levels = zip(*(nest.loops for nest in nests), strict=False)
        common = [level[0] for level in levels if all(loop is level[0] for loop in level)]
        sizes = [self._loops.value(extent) for extent in buffer.full]
        whole = _tvm.tirx.decl_buffer(sizes, name="whole", scope=buffer.scope)
        other = _tvm.tirx.decl_buffer([1], name="other")
        parts: list[Any] = []
        for (store, _, access), nest in zip(uses, nests, strict=True):
            places = self._terms.placed(store, nest)
            words = self._loops.words[store.block]
            said = (words.indices, *words.loads)[[store.target, *store.loads].index(access)]
            indices = [_tvm.substituted(index, places) for index in said]
            part = _tvm.tirx.BufferStore(other, _tvm.tirx.BufferLoad(whole, indices), [0])
            if access is store.target:
                part = _tvm.tirx.BufferStore(whole, _tvm.tirx.const(0, "float32"), indices)
            if nest.guards:
                part = _tvm.tirx.IfThenElse(functools.reduce(_tvm.tirx.all, nest.guards), part, None)
            parts.append(under_loops(_tvm.substituted(part, nest.dropped), nest.loops[len(common) :]))
        home = _tvm.s_tir.SBlock([], [], [], "home", _tvm.tirx.SeqStmt(parts), alloc_buffers=[whole])
        body = under_loops(_tvm.s_tir.SBlockRealize([], True, home), common)
        passes = _tvm.s_tir.transform
        module = _tvm.IRModule({"main": _tvm.PrimFunc([other], body)})
        main = passes.StmtSimplify()(passes.CompactBufferAllocation()(module))["main"]
        (home,) = _tvm.found(main.body, _tvm.s_tir.SBlock)
        found: _Indices = {}
        for (store, _, access), part in zip(uses, _tvm.found(main.body, _tvm.tirx.BufferStore), strict=True):
            indices = part.indices if access is store.target else part.value.indices
            found[store, access] = tuple(map(from_tvm, indices))
        return tuple(int(extent) for extent in home.alloc_buffers[0].shape), found


def _windowed(access: Access) -> bool:
    """Whether places in the buffer are remainders, which TVM's passes see in the order in which the model came."""
    return any(isinstance(floor, Remainder) for index in access.unmoved for floor in index.floors)
