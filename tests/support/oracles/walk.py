"""Enumerate every iteration of a scheduled function, and the elements that each statement accesses.

Input: a TVM function. Output: its stores with the elements of all accesses in all iterations. The indices are evaluated
numerically as TVM wrote them, without algebra.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike.codegen.annotations import Matrix, Pairs, TensorCores
from felixlike.frontend.constants import PACKING
from felixlike.symbolic.program import WITHIN_BLOCK
from felixlike.symbolic.program.nest import by_store, told_apart
from felixlike.symbolic.replay.primitives.storage_align import ALIGNED
from support.oracles.unfused import TOGETHER

Ints = npt.NDArray[np.int64]
Aligns: TypeAlias = "list[tuple[int, int, int]]"
"""(dimension, factor, offset): the step is the smallest one that equals `offset` modulo `factor`."""


@dataclass(eq=False)
class Loop:
    """A loop.

    Attributes:
        variable: TVM's loop variable.
        thread: the thread axis it is bound to, or "".
        on_tensor_cores: whether it is annotated for tensor cores.
        over_pair: whether it is annotated as the steps of a pair, which one execution computes.
        over_rows: whether it is annotated as the rows of a matrix of such pairs."""

    variable: Any
    extent: int
    thread: str = ""
    on_tensor_cores: bool = False
    over_pair: bool = False
    over_rows: bool = False


@dataclass(eq=False)
class Store:
    """A store.

    Attributes:
        elements: buffer → the index arrays of its accesses, one array over all iterations for each dimension.
        pairs: buffer → the elements of a row that an execution touches.
        rows: buffer → the rows of which an execution touches elements.
        looked_up: (buffer, dimension) pairs with a loaded index; its array holds positions in the index buffer."""

    block: str
    loops: list[Loop]
    target: Any
    loaded: list[Any]
    elements: dict[Any, list[list[Ints]]]
    looked_up: set[tuple[Any, int]]
    pairs: dict[Any, int]
    rows: dict[Any, int]


class _Packed:
    """A constant packed for the schedule, which counts as one-dimensional, whatever dimensions TVM gives it."""

    def __init__(self, buffer: Any) -> None:
        self.shape, self.dtype = [math.prod(int(e) for e in buffer.shape)], buffer.dtype

    def same_as(self, other: Any) -> bool:
        return self is other


def walked(func: Any, *, panels: bool) -> tuple[list[Store], dict[Any, list[Loop]]]:
    """Return the stores in program order, and for each internal buffer the loops that it is allocated inside of.

    Args:
        func: the function.
        panels: whether the trace itself packs constants, so that their dimensions tell which elements are adjacent."""
    stores: list[Store] = []
    names: Counter[str] = Counter()
    homes: dict[Any, list[Loop]] = {}
    packed: dict[Any, _Packed] = {}

    def visit(stmt: Any, path: list[Loop]) -> None:
        match type(stmt).__name__:
            case "For":
                loop = Loop(stmt.loop_var, int(stmt.extent))
                loop.thread = str(stmt.thread_binding.thread_tag) if stmt.thread_binding is not None else ""
                loop.on_tensor_cores, loop.over_pair = TensorCores.on(stmt), Pairs.on(stmt)
                loop.over_rows = Matrix.on(stmt) and any(map(Pairs.on, _tvm.found(stmt.body, _tvm.tirx.For)))
                visit(stmt.body, [*path, loop] if loop.extent > 1 else path)
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, path)
            case "SBlockRealize":
                for buffer in stmt.block.alloc_buffers:
                    shared = str(buffer.scope()).startswith("shared")
                    homes[buffer] = [loop for loop in path if not (shared and loop.thread in WITHIN_BLOCK)]
                if stmt.block.iter_vars:
                    store(stmt, path)
                else:
                    visit(stmt.block.body, path)

    def store(realize: Any, path: list[Loop]) -> None:
        block = realize.block
        if str(block.name_hint).endswith("_init"):
            return
        if PACKING in block.annotations:
            if not panels:
                packed[block.body.buffer] = _Packed(block.body.buffer)
            homes.pop(block.body.buffer)
            return
        if TOGETHER in block.annotations:
            path = [loop for loop in path if loop.thread not in WITHIN_BLOCK]
        loads = _loads(block.body.value)
        accesses = [(block.body.buffer, block.body.indices), *((x.source, x.indices) for x in loads)]
        looked_up = {(buffer, d) for buffer, indices in accesses for d, i in enumerate(indices) if _loads(i)}
        elements, pairs, rows = _elements(realize, path, accesses, packed)
        path = [loop for loop in path if not (loop.over_pair or loop.over_rows)]
        name = told_apart(str(block.name_hint).removesuffix("_update"), names)
        loaded = [packed.get(x.source, x.source) for x in loads]
        stores.append(Store(name, path, block.body.buffer, loaded, elements, looked_up, pairs, rows))

    visit(func.body, [])
    return stores, homes


def _elements(
    realize: Any, path: list[Loop], accesses: list[tuple[Any, Any]], packed: dict[Any, _Packed]
) -> tuple[dict[Any, list[list[Ints]]], dict[Any, int], dict[Any, int]]:
    """Return `Store.elements`, `Store.pairs` and `Store.rows`.

    A step of a pair, and a row, is a further access of the same execution."""
    elements: dict[Any, list[list[Ints]]] = {}
    pairs: dict[Any, int] = {}
    rows: dict[Any, int] = {}
    over_rows, over_pair = [loop for loop in path if loop.over_rows], [loop for loop in path if loop.over_pair]
    over = [*over_rows, *over_pair]
    steps = [range(loops[0].extent if loops else 1) for loops in (over_rows, over_pair)]
    for row, step in itertools.product(*steps):
        values = _iterations([loop for loop in path if loop not in over])
        for loops, number in ((over_rows, row), (over_pair, step)):
            values.update({loop.variable: np.full(values.length, number, dtype=np.int64) for loop in loops})
        for iterator, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            values[iterator.var] = _value(value, values)
        for buffer, indices in accesses:
            arrays = [_value(i, values) for i in indices]
            if buffer in packed:
                arrays = [_flat(arrays, [int(e) for e in buffer.shape])]
            known = elements.setdefault(packed.get(buffer, buffer), [])
            if row == step == 0 or not any(map(np.array_equal, [arrays] * len(known), known)):
                known.append(arrays)
                pairs[packed.get(buffer, buffer)] = step + 1
                rows[packed.get(buffer, buffer)] = row + 1
    return elements, pairs, rows


def aligned(func: Any) -> dict[Any, Aligns]:
    """Return the alignment annotations of all buffers."""
    alignments: dict[Any, Aligns] = {}
    for block in _tvm.found(func.body, _tvm.s_tir.SBlock):
        for number, dimension, factor, offset in block.annotations.get(ALIGNED, ()):
            buffer = block.writes[int(number)].source
            alignments.setdefault(buffer, []).append((int(dimension), int(factor), int(offset)))
    return alignments


def _loads(expression: Any) -> list[Any]:
    return _tvm.found(expression, _tvm.ir.TensorLoad)


def lanes_of(schedule: Any, *, fused_whole: bool) -> dict[str, int]:
    """Return the extent of each block's vector loop.

    The extent is 1 for copies that a GPU's threads share, whose loops are not vectors one by one, and for fully fused
    nests that MetaSchedule's postprocessor splits."""
    lanes_by_block: list[tuple[str, int]] = []
    bound: list[str] = []

    def visit(stmt: Any, lanes: int) -> None:
        match type(stmt).__name__:
            case "For" if stmt.thread_binding is not None:
                thread = str(stmt.thread_binding.thread_tag)
                if thread not in bound:  # nested loops of one thread axis share a copy
                    bound.append(thread)
                    visit(stmt.body, lanes)
                    bound.remove(thread)
            case "For":
                vector = stmt.kind == _tvm.tirx.ForKind.VECTORIZED
                splits_fused_nest = fused_whole and str(stmt.loop_var.name).endswith("_fused_1")
                visit(stmt.body, lanes * int(stmt.extent) if vector and not splits_fused_nest else lanes)
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, lanes)
            case "SBlockRealize" if stmt.block.iter_vars:
                lanes_by_block.append((str(stmt.block.name_hint), lanes))
            case "SBlockRealize":
                visit(stmt.block.body, lanes)

    visit(schedule.mod["main"].body, 1)
    return defaultdict(lambda: 1, by_store(lanes_by_block))


class _Values(dict[Any, Ints]):
    """Values of variables in all iterations; variables of loops of extent 1 are 0."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def __missing__(self, _: Any) -> Ints:
        return np.zeros(self.length, dtype=np.int64)


def _iterations(path: list[Loop]) -> _Values:
    shape = [loop.extent for loop in path]
    values = _Values(math.prod(shape))
    grid = np.indices(shape, dtype=np.int64).reshape(len(shape), math.prod(shape))
    for loop, column in zip(path, grid, strict=True):
        values[loop.variable] = column
    return values


def _value(node: Any, values: _Values) -> Ints:
    match type(node).__name__:
        case "IntImm":
            return np.full(values.length, int(node.value), dtype=np.int64)
        case "Var":
            return values[node]
        case "Cast":
            return _value(node.value, values)
        case "TensorLoad":  # treated as if all elements were different
            return _flat([_value(i, values) for i in node.indices], [int(e) for e in node.source.shape])
    a, b = _value(node.a, values), _value(node.b, values)
    operations = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "FloorDiv": np.floor_divide,
        "FloorMod": np.mod,
        "Div": np.floor_divide,  # operands are not negative
        "Mod": np.mod,
        "Min": np.minimum,
        "Max": np.maximum,
    }
    result: Ints = operations[type(node).__name__](a, b)
    return result


def _flat(arrays: list[Ints], shape: list[int]) -> Ints:
    """Return positions in row-major order."""
    flat = np.zeros_like(arrays[0])
    for extent, array in zip(shape, arrays, strict=True):
        flat = flat * extent + array
    return flat
