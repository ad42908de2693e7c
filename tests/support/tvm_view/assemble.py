"""Assemble felixlike's features in the layout of TVM's PerStoreFeature, for tests and for MetaSchedule's own models.

Input: formulas and points. Output: for every point float64[rows, 164], with one row for each written buffer as in TVM,
and NaN where TVM's value is not known. `explained_view` also returns the causes (`causes.py`):

| TVM's entries | NaN for |
| --- | --- |
| 7–14 (integer and boolean counters) | stores with conditions |
| 5, 147–156 | stores with conditions on remainders |
| 7–14, 57–156 | copies that threads share unevenly, reshapes in tiles, windows in groups |
| 57–156 | stores to or from a guarded buffer |
| 57–156 | stores that read a dimension of one element under a condition |
| 57–146: bytes between uses | stores after such a store in the same loop |
| 57–146 | buffers with equal lines, bytes and name, where their entries differ |
| 7–14, 57–156 | programs with loaded indices, except for the stores below |
| 157, 158 | guarded buffers, groups that threads share unevenly |

For stores without a reduction, or with a reduction inside each thread, that read only arguments of the function, most
entries are computed from TVM's own statement, conditions included.
A buffer is guarded if a moved block would run past its end at the point without a guard.
TVM splits a reduction across threads into two stores, each with a row (`common.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from felixlike.features.formulas import Formulas
from felixlike.features.table import NAMES
from felixlike.symbolic import Points
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.program import Buffer, Index, Program, Store
from support.tvm_view.buffers import Touched, buffer_entries
from support.tvm_view.causes import Cause
from support.tvm_view.common import ONE, ZERO
from support.tvm_view.counters import INTEGERS, MATH
from support.tvm_view.intensity import intensity
from support.tvm_view.loops import THREADS, Value
from support.tvm_view.lowered import LoweredStore, lowered
from support.tvm_view.words import words_of

_COLUMN = {name: i for i, name in enumerate(NAMES)}
_VECTOR, _UNROLLED, _PARALLEL = 16, 27, 38
"""First entries of the three blocks of 11 entries on one kind of loop."""

Row = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class View:
    """A view of one point.

    Attributes:
        values: float64[rows, 164].
        causes: (row, entry) → why the entry is NaN."""

    values: npt.NDArray[np.float64]
    causes: Mapping[tuple[int, int], Cause]


def tvm_view(formulas: Formulas, points: Points) -> list[npt.NDArray[np.float64]]:
    """Return one array float64[rows, 164] per point, with rows in the order of the first store to each buffer."""
    return [view.values for view in explained_view(formulas, points)]


def explained_view(formulas: Formulas, points: Points) -> list[View]:
    """Return the values of `tvm_view`, and why entries are NaN."""
    features = formulas.evaluate(points)
    views: dict[int, View] = {}
    for locations, members in formulas.sketch.by_structure(points):
        structure = formulas.of_structure(locations)
        program = structure.structure.program
        for member, value in zip(members.tolist(), _values(program, formulas, points[members]), strict=True):
            stores = lowered(program, value, words_of(formulas.sketch, locations))
            rows = [formulas.stores.index(lowered_store.store.block) for lowered_store in stores]
            views[member] = _view(stores, value, features[member, rows])
    return [views[member] for member in range(len(points))]


_BYTES_APART = 11
"""Position of the bytes between uses among a buffer's entries; they include bytes of other stores."""


def _view(stores: list[LoweredStore], value: Value, ours: npt.NDArray[np.float64]) -> View:
    """Return one row for each buffer, the row of its last store."""
    buffers = dict.fromkeys(access.buffer for lowered_store in stores for access in lowered_store.store.accesses)
    shapes = {buffer: tuple(value(extent) for extent in buffer.shape) for buffer in buffers}
    touched = Touched()
    rows: dict[Buffer, tuple[Row, dict[int, Cause]]] = {}
    for store, numbers in zip(stores, ours, strict=True):
        shapes_here = {**shapes, **store.shapes}
        of_buffers = buffer_entries(store, shapes_here.__getitem__, touched)
        row, causes = _row(numbers, store, shapes_here[store.store.target.buffer])
        work = sum(store.counts[1:7])
        row[57:147] = of_buffers.entries
        row[147:157] = intensity(work, [loop.extent for loop in store.loops], of_buffers.touched)
        of_curve = Cause.REMAINDERS if math.isnan(work) else of_buffers.cause
        causes.update(dict.fromkeys(range(147, 157), of_curve) if of_curve is not None else {})
        for place in range(90):
            cause_of_entry = Cause.ALIKE if place in of_buffers.tied else Cause.BEFORE
            causes[57 + place] = of_buffers.cause or cause_of_entry
        rows[store.store.target.buffer] = row, causes
    if any(not s.said and _has_loaded_index(s.store) for s in stores):
        for row, causes in rows.values():
            for entry in (*range(7, 15), *range(57, 157)):
                row[entry], causes[entry] = math.nan, Cause.LOADED
    values = np.stack([row for row, _ in rows.values()])
    causes_by_row = [causes for _, causes in rows.values()]
    return View(values, {(i, e): causes_by_row[i][e] for i, e in np.argwhere(np.isnan(values)).tolist()})


def _has_loaded_index(store: Store) -> bool:
    return any(index.lookup is not None for access in store.accesses for index in access.indices)


def _values(program: Program, formulas: Formulas, points: Points) -> Iterator[Value]:
    """Return a function for each point that maps an expression of the program to its value."""
    roots = list(dict.fromkeys((ZERO, ONE, *_expressions(program))))
    values = np.rint(Graph(roots).evaluate(formulas.sketch.values(points), len(points))).astype(np.int64)
    for row in values.tolist():
        yield dict(zip(roots, row, strict=True)).__getitem__


def _expressions(program: Program) -> Iterator[Expr]:
    for blanket in program.blankets.values():
        yield from (blanket.gate, blanket.total)
    for buffer in program.buffers:
        yield from (*buffer.shape, *buffer.full, *(buffer.origin.shape if buffer.origin is not None else ()))
    for store, path in program.stores():
        for loop in path:
            yield from (loop.extent, loop.parallel, loop.vector, loop.unroll)
            if loop.share is not None:
                yield from (extent for _, extent in loop.share.parts)
        for access in store.accesses:
            for index in (*access.indices, *access.written, *access.unmoved):
                yield from _index_expressions(index)


def _index_expressions(index: Index) -> Iterator[Expr]:
    yield index.offset
    yield from (stride for _, stride in index.strides)
    for floor in index.floors:
        yield from _index_expressions(floor.inner)


def _row(ours: npt.NDArray[np.float64], store: LoweredStore, shape: tuple[int, ...]) -> tuple[Row, dict[int, Cause]]:
    """Return all entries except those on buffers and intensity, and why some are NaN."""
    row = np.full(164, np.nan)
    row[:16] = [_log(count * store.iterations) for count in store.counts]
    causes = dict.fromkeys(INTEGERS, store.cause or Cause.CONDITIONS)
    causes[MATH] = Cause.REMAINDERS
    for start, kind in ((_VECTOR, "vector"), (_UNROLLED, "unrolled"), (_PARALLEL, "parallel")):
        _loop_kind(row, start, [loop.extent for loop in store.loops if loop.kind == kind])
    row[49] = float(any(loop.kind in THREADS for loop in store.loops))
    row[50:57] = 1.0  # log2(1 + 1): no thread loops
    for entry, name in ((50, "block"), (53, "thread"), (56, "vthread")):
        row[entry] = _log(ours[_COLUMN[f"{name}_extent"]])
    if across := [loop.extent for loop in store.loops if loop.kind == "threadIdx.y"]:
        row[53] = _log(ours[_COLUMN["thread_extent"]] / math.prod(across))
        row[54] = _log(math.prod(across))
    outer, target = store.allocated, store.store.target.buffer
    elements = math.prod(shape)
    row[157] = _log(elements * target.item_bytes)  # TVM ignores aligned steps
    row[158:160] = _log(elements * outer), _log(outer)
    row[160] = _log(store.iterations / outer)
    row[161] = _log(store.iterations)
    row[162] = _log(len(store.loops))
    row[163] = _log(store.noted)
    if target in store.guarded or (target.grouped and target not in store.shapes):
        row[157:159] = np.nan
        causes.update(dict.fromkeys((157, 158), Cause.GUARDS if target in store.guarded else Cause.GROUPS))
    return row, causes


def _loop_kind(row: Row, start: int, extents: list[int]) -> None:
    """Set [number, product, extent of the innermost, one-hot position]; position 0 without such a loop, else 7."""
    row[start : start + 11] = 0.0
    if not extents:
        row[start + 3] = 1.0
        return
    row[start : start + 3] = [_log(len(extents)), _log(float(np.prod(extents))), _log(extents[-1])]
    row[start + 10] = 1.0


def _log(value: float) -> float:
    return float(np.log2(abs(value) + 1))
