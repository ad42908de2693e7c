"""Our features in the layout of TVM's PerStoreFeature, for tests and for MetaSchedule's own models.

In: formulas and points. Out: for every point float64[rows, 164], one row a written buffer as in TVM, NaN where what TVM
finds is not known:

| TVM's entries | why NaN |
| --- | --- |
| 7–14 (integer and boolean counters) of stores with conditions | TVM's simplifier writes conditions anew |
| 5, 147–156 of stores whose value asks for a remainder | TVM's simplifier may settle the condition for some tiles |
| 7–14, 57–156 of copies that threads share unevenly or of groups, of reshapes | TVM may write it in several ways |
| 57–156 of stores to or from a guarded buffer | TVM places it relative to where the guard begins |
| 57–156 of stores that read a dimension of one element under a condition | TVM writes the index that is left |
| 57–146: bytes between uses, after such a store in the same loop | likewise |
| 57–146 of buffers alike in lines, bytes and name, where they differ | TVM's sorting is not stable |
| 7–14, 57–156 of programs with indices that are loaded | what TVM makes of such an index is not modelled |
| 157, 158 of guarded buffers | TVM leaves such a dimension whole for some tiles, not for others |

A guarded buffer is one whose accesses may lie outside, so that its shape asks for the smaller of two extents, or one
accessed in groups that loops around its allocation decide.
Where threads reduce together there is no view: TVM rewrites such a store into several before it looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from felixlike.errors import UnsupportedSketch
from felixlike.features.formulas import Formulas
from felixlike.features.table import NAMES
from felixlike.features.tvm_view.buffers import Touched, buffer_entries, guarded
from felixlike.features.tvm_view.counters import index_counters
from felixlike.features.tvm_view.intensity import intensity
from felixlike.features.tvm_view.lowered import THREADS, LoweredStore, Value, lowered
from felixlike.symbolic import Points
from felixlike.symbolic.evaluate import Graph
from felixlike.symbolic.expression import Expr
from felixlike.symbolic.indices import Index
from felixlike.symbolic.program import Loop, Operation, Program, Store

_COLUMN = {name: i for i, name in enumerate(NAMES)}
_FLOAT_COUNTERS = (
    (1, Operation.FLOAT_ADD_SUB),
    (2, Operation.FLOAT_MUL),
    (3, Operation.FLOAT_DIV_MOD),
    (4, Operation.FLOAT_CMP),
    (5, Operation.FLOAT_MATH_FUNC),
    (6, Operation.FLOAT_OTHER_FUNC),
)
_VECTOR, _UNROLLED, _PARALLEL = 16, 27, 38
"""Where the three blocks of 11 entries on a kind of loop begin."""

Row = npt.NDArray[np.float64]


def tvm_view(formulas: Formulas, points: Points) -> list[npt.NDArray[np.float64]]:
    """One array float64[rows, 164] a point, rows in TVM's order: by the first counted store to each buffer.

    Raises UnsupportedSketch where threads reduce together."""
    features = formulas.evaluate(points)
    views: list[npt.NDArray[np.float64]] = [np.empty(0)] * len(points)
    for locations, members in formulas.sketch.by_structure(points):
        structure = formulas.of_structure(locations)
        program = structure.structure.program
        for store, path in program.stores():
            _refuse_common_reductions(store, path)
        rows = formulas.rows(structure)
        for member, value in zip(members, _values(program, formulas, points[members]), strict=True):
            ours = features[member, rows]
            views[member] = _view(program, lowered(program, value), value, ours)
    return views


def _view(
    program: Program, stores: list[LoweredStore], value: Value, ours: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """One row for each buffer: its last store's."""
    groups = _groups(program, stores, value)
    last = {store.store.target.buffer: i for i, store in enumerate(stores)}
    view = np.stack([_row(ours[i], stores[i]) for i in last.values()])
    for row, i in zip(view, last.values(), strict=True):
        row[57:147], row[147:157] = groups[i]
    if any(index.lookup is not None for s in stores for access in s.store.accesses for index in access.indices):
        view[:, [*range(7, 15), *range(57, 157)]] = np.nan
    return view


def _groups(program: Program, stores: list[LoweredStore], value: Value) -> list[tuple[list[float], list[float]]]:
    """For each store its entries on buffers and on intensity."""
    shapes = {buffer: tuple(value(extent) for extent in buffer.shape) for buffer in program.buffers}
    touched = Touched()
    found = []
    for store in stores:
        of_buffers = buffer_entries(store, {**shapes, **store.shapes}.__getitem__, touched)
        work = sum(count for operation, count in store.store.operations if operation.value.startswith("float"))
        curve = intensity(
            math.nan if _wavers(store) else work, [loop.extent for loop in store.loops], of_buffers.touched
        )
        found.append((of_buffers.entries, curve))
    return found


def _values(program: Program, formulas: Formulas, points: Points) -> Iterator[Value]:
    """For each point, what an expression of the program is."""
    roots = list(dict.fromkeys(_expressions(program)))
    values = np.rint(Graph(roots).evaluate(formulas.sketch.values(points), len(points))).astype(np.int64)
    for row in values.tolist():
        yield dict(zip(roots, row, strict=True)).__getitem__


def _expressions(program: Program) -> Iterator[Expr]:
    for blanket in program.blankets.values():
        yield from (blanket.gate, blanket.total)
    for buffer in program.buffers:
        yield from (*buffer.shape, *(buffer.origin.shape if buffer.origin is not None else ()))
    for store, path in program.stores():
        for loop in path:
            yield from (loop.extent, loop.parallel, loop.vector, loop.unroll)
            if loop.share is not None:
                yield from (extent for _, extent in loop.share.parts)
        for access in store.accesses:
            for index in (*access.indices, *access.written):
                yield from _of_index(index)


def _of_index(index: Index) -> Iterator[Expr]:
    yield index.offset
    yield from (stride for _, stride in index.strides)
    for floor in index.floors:
        yield from _of_index(floor.inner)


def _wavers(store: LoweredStore) -> bool:
    """Whether TVM's simplifier may settle a condition of the store for some tiles."""
    return any(operation is Operation.INT_CMP for operation, _ in store.store.operations) and " % " in store.store.text


def _refuse_common_reductions(store: Store, path: tuple[Loop, ...]) -> None:
    bound = {
        loop.variable
        for loop in path
        if loop.thread == "threadIdx.x" or (loop.share is not None and loop.share.among("threadIdx.x"))
    }
    if bound & store.reduction:
        raise UnsupportedSketch("threads reduce together", where=f"block {store.block}")


def _row(ours: npt.NDArray[np.float64], store: LoweredStore) -> Row:
    """All entries but those on buffers and intensity."""
    counts = dict(store.store.operations)
    row = np.full(164, np.nan)
    row[0] = 0.0  # TVM never counts fused multiply-adds
    for entry, operation in _FLOAT_COUNTERS:
        row[entry] = _log(counts.get(operation, 0) * store.iterations)
    row[7:15] = index_counters(store)
    row[15] = _log(counts.get(Operation.SELECT_OP, 0) * store.iterations)
    for start, kind in ((_VECTOR, "vector"), (_UNROLLED, "unrolled"), (_PARALLEL, "parallel")):
        _loop_kind(row, start, [loop.extent for loop in store.loops if loop.kind == kind])
    row[49] = float(any(loop.kind in THREADS for loop in store.loops))
    row[50:57] = 1.0  # log2(1 + 1): no thread loops
    for entry, name in ((50, "block"), (53, "thread"), (56, "vthread")):
        row[entry] = _log(ours[_COLUMN[f"{name}_extent"]])
    outer = ours[_COLUMN["allocation_outer"]]
    for entry, name in ((157, "bytes"), (158, "elements"), (159, "outer")):
        row[entry] = _log(ours[_COLUMN[f"allocation_{name}"]])
    row[160] = _log(store.iterations / outer)
    row[161] = _log(store.iterations)
    row[162] = _log(len(store.loops))
    row[163] = _log(store.noted)
    if _wavers(store):
        row[5] = np.nan
    if guarded(store.store.target.buffer):
        row[157:159] = np.nan
    return row


def _loop_kind(row: Row, start: int, extents: list[int]) -> None:
    """[number, product, extent of the innermost, one-hot position]: position 0 without such a loop, 7 with one."""
    row[start : start + 11] = 0.0
    if not extents:
        row[start + 3] = 1.0
        return
    row[start : start + 3] = [_log(len(extents)), _log(float(np.prod(extents))), _log(extents[-1])]
    row[start + 10] = 1.0


def _log(value: float) -> float:
    return float(np.log2(abs(value) + 1))
