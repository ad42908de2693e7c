"""Buffers that are accessed in groups: the shapes that TVM allocates, and the indices that it then writes.

Input: a program and its loops at a point. Output: for every such buffer its shape and the indices of all accesses,
where they are known. If TVM's simplifier does not find where groups begin, loops around the allocation remain in the
indices, and more is allocated than used. So TVM's passes are run on the loops of the point with only these accesses.
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

    `terms` converts indices to expressions of the nests of `loops`."""

    def __init__(self, program: Program, loops: Loops, terms: Terms) -> None:
        self._loops, self._terms = loops, terms
        self.shapes: dict[Buffer, tuple[int, ...]] = {}
        """Shapes as TVM allocates them."""
        self.indices: dict[tuple[Store, Access, bool], tuple[Written, ...]] = {}
        """Indices that TVM writes for (store, access, whether TVM understands the guard of a share)."""
        for buffer in program.buffers:
            if not buffer.grouped:
                continue
            uses = [(s, p, a) for s, p in program.stores() for a in dict.fromkeys(s.accesses) if a.buffer is buffer]
            if not any(_windowed(access) for _, _, access in uses):
                self._allocate(buffer, uses)

    def _allocate(self, buffer: Buffer, uses: list[_Use]) -> None:
        """Find the shape that TVM allocates for a buffer.

        Nothing is recorded if the shape depends on whether TVM understands the guard of a share."""
        shape, indices = self._compacted(buffer, uses, known=True)
        uneven = any(loop.share is not None for _, path, _ in uses for loop in path)
        other, others = self._compacted(buffer, uses, known=False) if uneven else (shape, indices)
        read = [(s, a) for s, _, a in uses if a is not s.target]
        if other == shape and all(others[key] == indices[key] for key in read):
            self.shapes[buffer] = shape
            self.indices |= {(*key, True): written for key, written in indices.items()}
            self.indices |= {(*key, False): written for key, written in others.items()}

    def _compacted(self, buffer: Buffer, uses: list[_Use], *, known: bool) -> tuple[tuple[int, ...], _Indices]:
        """Return the shape that TVM gives a buffer, and the indices it writes."""
        nests = [self._loops.nest(store, path, known=known) for store, path, _ in uses]
        levels = zip(*(nest.loops for nest in nests), strict=False)
        common = [level[0] for level in levels if all(loop is level[0] for loop in level)]
        sizes = [self._loops.value(extent) for extent in buffer.full]
        whole_buffer = _tvm.tirx.decl_buffer(sizes, name="whole", scope=buffer.scope)
        other = _tvm.tirx.decl_buffer([1], name="other")
        parts: list[Any] = []
        for (store, _, access), nest in zip(uses, nests, strict=True):
            places = self._terms.placed(store, nest)
            words = self._loops.words[store.block]
            access_indices = (words.indices, *words.loads)[[store.target, *store.loads].index(access)]
            indices = [_tvm.substituted(index, places) for index in access_indices]
            part = _tvm.tirx.BufferStore(other, _tvm.tirx.BufferLoad(whole_buffer, indices), [0])
            if access is store.target:
                part = _tvm.tirx.BufferStore(whole_buffer, _tvm.tirx.const(0, "float32"), indices)
            if nest.guards:
                part = _tvm.tirx.IfThenElse(functools.reduce(_tvm.tirx.all, nest.guards), part, None)
            parts.append(under_loops(_tvm.substituted(part, nest.dropped), nest.loops[len(common) :]))
        allocating_block = _tvm.s_tir.SBlock([], [], [], "home", _tvm.tirx.SeqStmt(parts), alloc_buffers=[whole_buffer])
        body = under_loops(_tvm.s_tir.SBlockRealize([], True, allocating_block), common)
        passes = _tvm.s_tir.transform
        module = _tvm.IRModule({"main": _tvm.PrimFunc([other], body)})
        main = passes.StmtSimplify()(passes.CompactBufferAllocation()(module))["main"]
        (allocating_block,) = _tvm.found(main.body, _tvm.s_tir.SBlock)
        indices_by_access: _Indices = {}
        for (store, _, access), part in zip(uses, _tvm.found(main.body, _tvm.tirx.BufferStore), strict=True):
            indices = part.indices if access is store.target else part.value.indices
            indices_by_access[store, access] = tuple(map(from_tvm, indices))
        return tuple(int(extent) for extent in allocating_block.alloc_buffers[0].shape), indices_by_access


def _windowed(access: Access) -> bool:
    """Return whether an access has remainders, whose form in TVM depends on how the model wrote them."""
    return any(isinstance(floor, Remainder) for index in access.unmoved for floor in index.floors)
