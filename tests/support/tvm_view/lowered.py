"""The program as TVM's extractor sees it at one point: fused loops, and indices as TVM's simplifier writes them.

    for i_0, j_0, i_1:   (parallel)         parallel p:
        for k:                      →           for k:
            … A[i_0·8 + i_1, k]                     … A[p // 12 * 8 + p % 3, k]

Input: a program and the values of its expressions. Output: for every store its loops, outermost first, the indices of
every access as small trees, and its operations. The program determines which loops are fused (`loops.py`). How the
remainders and quotients of a fused loop are written is decided by TVM's simplifier, so statements pass through it.
Buffers that are accessed in groups pass through further TVM passes (`grouped.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike.symbolic.expr.node import Op
from felixlike.symbolic.program import Buffer, Loop, Program, Store
from felixlike.symbolic.replay.postprocessors.compact_allocation import allocation_paths
from support.tvm_view.causes import Cause
from support.tvm_view.common import apart
from support.tvm_view.counters import INTEGERS, of_store, of_value
from support.tvm_view.grouped import Grouped
from support.tvm_view.loops import Loops, LoweredLoop, Nest, Value, under_loops
from support.tvm_view.relaid import Relaid
from support.tvm_view.terms import Terms
from support.tvm_view.words import Words
from support.tvm_view.written import Written, from_tvm


@dataclass(frozen=True, slots=True, eq=False)
class LoweredStore:
    """One store.

    Attributes:
        loops: outermost first.
        places: for each accessed buffer the indices that TVM uses, one row per access; for the written buffer, those of
            the write.
        counts: TVM's counters of arithmetic in one execution, NaN where unknown.
        cause: why TVM may write indices in another way; None if there is only one way.
        shapes: shapes of constants that are packed for this store, and of buffers that are accessed in groups."""

    store: Store
    loops: tuple[LoweredLoop, ...]
    places: Mapping[Buffer, tuple[tuple[Written, ...], ...]]
    counts: tuple[float, ...]
    cause: Cause | None
    shapes: Mapping[Buffer, tuple[int, ...]]
    said: bool
    """Whether the store is known as TVM writes it."""
    guarded: frozenset[Buffer]
    """The accessed buffers that a guard protects from accesses past their end."""
    allocated: int = 1
    """Product of the extents of the loops around the allocation of the written buffer."""
    noted: int = 0
    """Largest number of unrolled steps in the annotations of the nest."""

    @property
    def iterations(self) -> int:
        """Product of the extents of all loops."""
        return math.prod(loop.extent for loop in self.loops)

    @property
    def loads(self) -> frozenset[Buffer]:
        """Buffers that are read."""
        target = self.store.target.buffer
        return frozenset(b for b in self.places if b is not target or any(b is a.buffer for a in self.store.loads))


def lowered(program: Program, value: Value, words: Mapping[str, Words]) -> list[LoweredStore]:
    """Return every store in program order. Raises UnsupportedSketch if an index of TVM is not supported."""
    program = apart(program, value, words)
    lowering = _Lowering(program, value, words)
    return [lowering.store(store, path) for store, path in program.stores()]


_Accesses: TypeAlias = "tuple[dict[Buffer, tuple[tuple[Written, ...], ...]], tuple[float, ...]]"
"""`places` and `counts` of a lowered store."""


class _Lowering:
    """Lowers the stores of one program."""

    def __init__(self, program: Program, value: Value, words: Mapping[str, Words]) -> None:
        self._value = value
        self._loops = Loops(program, value, words)
        self._terms = Terms(self._loops)
        self._allocation_paths = allocation_paths(program)
        self._guarded = {store.target.buffer for store, path in program.stores() if self._runs_past(store, path)}
        self._grouped = Grouped(program, self._loops, self._terms)

    def store(self, store: Store, path: tuple[Loop, ...]) -> LoweredStore:
        """Return one store with its loops and indices.

        For an unevenly shared copy, TVM sometimes infers its range from the guard and then writes indices without the
        remainder by the whole. Reshapes, and indices of moved blocks in groups, are written in the order of the model.
        These indices are known here only if the statement is available as TVM writes it."""
        nest, accesses = self._accesses(store, path, known=True)
        is_plain = _plain(store, path)
        cause = None if is_plain or not _divided(store) else Cause.WORDS
        if any(access.buffer.grouped and access.buffer not in self._grouped.shapes for access in store.accesses):
            cause = Cause.GROUPS
        shared = not is_plain and any(loop.share is not None for loop in path)
        if shared and self._accesses(store, path, known=False)[1] != accesses:
            cause = Cause.WORDS
        places, counts = accesses
        if cause is not None:
            counts = tuple(math.nan if i in INTEGERS else count for i, count in enumerate(counts))
        unroll_steps = self._value(path[0].unroll) if path else 0
        relaid = [access for access in store.accesses if access.buffer.origin is not None]
        shapes = {access.buffer: Relaid(access, path, nest, self._loops).shape for access in relaid}
        shapes |= {a.buffer: self._grouped.shapes[a.buffer] for a in store.accesses if a.buffer in self._grouped.shapes}
        guarded = frozenset(a.buffer for a in store.accesses) & self._guarded
        allocation_nest = self._loops.grouped(self._allocation_paths.get(store.target.buffer, ()))
        allocated = math.prod(loop.extent for loop in allocation_nest.loops)
        return LoweredStore(
            store, tuple(nest.loops), places, counts, cause, shapes, is_plain, guarded, allocated, unroll_steps
        )

    def _runs_past(self, store: Store, path: tuple[Loop, ...]) -> bool:
        """Return whether a guard keeps a moved block from running past the end of its buffer."""
        if all(extent.op is not Op.MIN for extent in store.target.buffer.shape):
            return False
        return bool(self._terms.ends(store, self._terms.placed(store, self._loops.nest(store, path))))

    def _accesses(self, store: Store, path: tuple[Loop, ...], *, known: bool) -> tuple[Nest, _Accesses]:
        """Return the loops, and the indices and counts of arithmetic that TVM sees under them.

        Args:
            store: the store.
            path: the program's loops around it.
            known: whether TVM infers from the guard of a share that it stays within the fused extent."""
        nest = self._loops.nest(store, path, known=known)
        if _plain(store, path):
            return nest, self._from_statement(store, nest)
        return nest, self._from_formulas(store, path, nest, known=known)

    def _from_statement(self, store: Store, nest: Nest) -> _Accesses:
        """Return indices and counts of a statement as TVM writes it, under the loops here, simplified by TVM."""
        words = self._loops.words[store.block]
        places = self._terms.placed(store, nest)
        value = _tvm.structural_map(_tvm.substituted(words.value, places), (_tvm.tirx.Select, _without_loads))
        indices = [_tvm.substituted(index, places) for index in words.indices]
        statement = _tvm.tirx.BufferStore(words.target, value, indices)
        statement = _simplified(statement, nest.loops, [tvm_buffer for tvm_buffer, _ in words.buffers])
        rows_by_buffer: dict[Buffer, list[tuple[Written, ...]]] = {}
        ours = {access.buffer.name: access.buffer for access in store.accesses}
        names = dict(words.buffers)
        target = tuple(map(from_tvm, statement.indices))
        if store.target.buffer.internal:  # which is compacted to its accesses
            written = store.target.written or store.target.indices
            target = tuple(from_tvm(self._terms.written(index, nest)) for index in written)
        rows_by_buffer[store.target.buffer] = [target]
        for load in _loads(statement.value):
            if load.source.same_as(words.target):  # TVM uses the indices of the write
                continue
            rows_by_buffer.setdefault(ours[names[load.source]], []).append(tuple(map(from_tvm, load.indices)))
        return {buffer: tuple(rows) for buffer, rows in rows_by_buffer.items()}, tuple(of_value(statement.value))

    def _from_formulas(self, store: Store, path: tuple[Loop, ...], nest: Nest, *, known: bool) -> _Accesses:
        """Return indices and counts from the formulas of the indices."""
        words = {
            access: [self._terms.written(index, nest) for index in access.written or access.indices]
            for access in dict.fromkeys(store.accesses)
        }
        for access in words:
            if access.buffer.origin is not None:
                old = [self._terms.sum(index, nest) for index in access.written]
                words[access] = Relaid(access, path, nest, self._loops).indices(old)
        indices = {access: tuple(map(from_tvm, index_row)) for access, index_row in words.items()}
        allocated = [access for access in words if access.buffer in self._grouped.shapes]
        indices |= {access: self._grouped.indices[store, access, known] for access in allocated}
        target = store.target.buffer
        places: dict[Buffer, tuple[tuple[Written, ...], ...]] = {target: (indices[store.target],)}
        for load in store.loads:
            if load.buffer is not target:
                places[load.buffer] = (*places.get(load.buffer, ()), indices[load])
        repeated = ((indices[load], times) for load, times in zip(store.loads, store.repeats, strict=True))
        return places, tuple(of_store(store, repeated))


def _plain(store: Store, path: tuple[Loop, ...]) -> bool:
    """Return whether the statement as TVM writes it is known.

    It has no reduction, or one inside each thread only; it reads only arguments of the function; it does not write to
    shared memory; its target has no guard and no groups."""
    target = store.target.buffer
    if (
        (store.is_reduction and not _spread(store, path))
        or target.grouped
        or any(extent.op is Op.MIN for extent in target.shape)
    ):
        return False
    if target.internal and (target.scope != "global" or _divided(store)):  # moved, in an order that TVM chooses
        return False
    loads = [load.buffer for load in store.loads if load.buffer is not target]
    return not any(buffer.internal or buffer.origin is not None for buffer in loads)


def _spread(store: Store, path: tuple[Loop, ...]) -> bool:
    """Return whether threads share the elements of the result, and none of the reduction."""
    shared = {loop.variable for loop in path if loop.share is not None}
    return bool(shared) and not shared & store.reduction


def _divided(store: Store) -> bool:
    """Return whether a store without a reduction has divisions in its indices or conditions."""
    divided = any(index.floors for access in store.accesses for index in access.indices)
    return not store.reduction and (divided or " // " in store.text or " % " in store.text)


def _simplified(store: Any, loops: list[LoweredLoop], buffers: list[Any]) -> Any:
    """Return the statement after TVM's simplification pass, which uses the conditions around expressions."""
    module = _tvm.IRModule({"main": _tvm.PrimFunc(buffers, under_loops(store, loops))})
    (simplified,) = _tvm.found(_tvm.s_tir.transform.StmtSimplify()(module)["main"].body, _tvm.tirx.BufferStore)
    return simplified


def _loads(expression: Any) -> list[Any]:
    return _tvm.found(expression, _tvm.ir.TensorLoad)


def _without_loads(select: Any) -> Any:
    """Replace a selection that reads nothing by 1, as TVM's extractor does."""
    return select if _loads(select) else _tvm.tirx.const(1, str(select.ty.dtype))
