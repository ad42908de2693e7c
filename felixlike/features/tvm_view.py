"""Our features in the layout of TVM's PerStoreFeature, for tests and for MetaSchedule's own models.

In: formulas and points. Out: for every point float64[rows, 164], one row a written buffer as in TVM, NaN where this
version defines a feature differently or not at all:

| TVM's entries | why NaN |
| --- | --- |
| 7–14 (integer and boolean counters) | TVM counts the arithmetic of indices, as its simplifier happened to leave it |
| 57–146 (buffers) | TVM sorts buffers by value, and loses regions and strides on fused loops |
| 147–156 (arithmetic intensity) | replaced by traffic at the caches there are |
| 1–6, 15, 160, 161 of a nest fused whole, not divided by the vector width | TVM counts guarded iterations |
| the same of nests that threads share unevenly | likewise |
| 5 of stores whose value asks for a remainder | TVM's simplifier may settle the condition for some tiles |
| 157, 158 of buffers whose accesses are guarded | TVM leaves such a dimension whole for some tiles, not for others |
| 162 on GPUs | TVM counts thread loops of extent 1 too |

Where threads reduce together there is no view: TVM rewrites such a store into several before it looks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from felixlike.errors import UnsupportedSketch
from felixlike.features.formulas import Formulas
from felixlike.features.table import NAMES
from felixlike.symbolic import Points
from felixlike.symbolic.evaluate import evaluate
from felixlike.symbolic.expression import Op
from felixlike.symbolic.program import Buffer, Loop, Operation, Program, Store

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


def tvm_view(formulas: Formulas, points: Points) -> list[npt.NDArray[np.float64]]:
    """One array float64[rows, 164] a point, rows in TVM's order: by the first counted store to each buffer.

    Raises UnsupportedSketch where threads reduce together."""
    features, columns = formulas.evaluate(points), formulas.sketch.values(points)
    views: list[npt.NDArray[np.float64]] = [np.empty(0)] * len(points)
    for locations, members in formulas.sketch.by_structure(points):
        structure = formulas.of_structure(locations)
        rows = formulas.rows(structure)
        program = structure.structure.program
        stores = [store for store, _ in program.stores()]
        shared = [_threads_of(store, path) for store, path in program.stores()]
        last = {store.target.buffer: i for i, store in enumerate(stores)}
        on_gpu = formulas.sketch.task.target.kind.name == "cuda"
        for member in members:
            view = np.stack([_row(features[member, rows[i]], on_gpu=on_gpu, shared=shared[i]) for i in last.values()])
            view[[" % " in stores[i].text for i in last.values()], 5] = np.nan
            view[[_guarded(buffer) for buffer in last], 157:159] = np.nan
            values = {name: float(v[member]) for name, v in columns.items()}
            _blankets(view, program, list(last), values)
            views[member] = view
    return views


def _guarded(buffer: Buffer) -> bool:
    """Whether accesses may lie outside, so that the box of what is touched is larger than the buffer."""
    return any(extent.op is Op.MIN for extent in buffer.shape)


def _threads_of(store: Store, path: tuple[Loop, ...]) -> bool:
    """Whether the store's nest is shared out among threads that need not divide it."""
    bound = {
        loop.variable
        for loop in path
        if loop.thread == "threadIdx.x" or (loop.share is not None and loop.share.among("threadIdx.x"))
    }
    if bound & store.reduction:
        raise UnsupportedSketch("threads reduce together", where=f"block {store.block}")
    return any(loop.share is not None for loop in path)


def _blankets(
    view: npt.NDArray[np.float64], program: Program, targets: list[Buffer], values: Mapping[str, float]
) -> None:
    """Rows of nests that are fused whole and split by the vector width."""
    for store, blanket in program.blankets.items():
        if store.target.buffer not in targets or not evaluate(blanket.gate, values):
            continue
        row = view[targets.index(store.target.buffer)]
        total = round(evaluate(blanket.total, values))
        # TVM keeps both loops, however short the parallel one is.
        _loop_kind(row, _PARALLEL, -(-total // blanket.width), none=False)
        row[162] = _log(2)
        if total % blanket.width:
            row[[*(entry for entry, _ in _FLOAT_COUNTERS), 15, 160, 161]] = np.nan


def _row(ours: npt.NDArray[np.float64], *, on_gpu: bool, shared: bool) -> npt.NDArray[np.float64]:
    row = np.full(164, np.nan)
    row[0] = 0.0  # TVM never counts fused multiply-adds
    for entry, operation in _FLOAT_COUNTERS:
        row[entry] = _log(ours[_COLUMN[operation.value]])
    row[15] = _log(ours[_COLUMN["select_op"]])
    for start, kind in ((_VECTOR, "vector"), (_PARALLEL, "parallel")):
        _loop_kind(row, start, ours[_COLUMN[f"{kind}_extent"]], none=bool(ours[_COLUMN[f"{kind}_none"]]))
    _loop_kind(row, _UNROLLED, 1.0, none=True)  # notes to unroll are no unrolled loops
    row[49] = float(on_gpu)
    row[50:57] = 1.0  # log2(1 + 1): no thread loops
    for entry, name in ((50, "block"), (53, "thread"), (56, "vthread")):
        row[entry] = _log(ours[_COLUMN[f"{name}_extent"]])
    for entry, name in ((157, "bytes"), (158, "elements"), (159, "outer"), (160, "inner")):
        row[entry] = _log(ours[_COLUMN[f"allocation_{name}"]])
    row[161] = _log(ours[_COLUMN["iterations"]])
    row[162] = _log(ours[_COLUMN["loops"]])
    row[163] = _log(ours[_COLUMN["unroll_steps"]])
    if on_gpu:
        row[162] = np.nan
    if shared:
        row[[*(entry for entry, _ in _FLOAT_COUNTERS), 15, 160, 161]] = np.nan
    return row


def _loop_kind(row: npt.NDArray[np.float64], start: int, extent: float, *, none: bool) -> None:
    """[number, product, extent of the innermost, one-hot position]: position 0 without such a loop, 7 with one."""
    row[start : start + 11] = 0.0
    if none:
        row[start + 3] = 1.0
        return
    row[start : start + 3] = [_log(1), _log(extent), _log(extent)]
    row[start + 10] = 1.0


def _log(value: float) -> float:
    return float(np.log2(abs(value) + 1))
