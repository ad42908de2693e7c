"""Feature formulas: every column of every store of a sketch as an expression of the schedule variables.

In: a sketch. Out: `Formulas`, exact at every valid point; `evaluate` computes many points in one vectorised pass.
Each choice of compute locations has formulas of its own, made when a point first needs them; a block that is inlined
leaves a row of zeros, so that rows keep their meaning.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from felixlike._util import option_checks
from felixlike.features.access import access
from felixlike.features.allocation import allocation
from felixlike.features.arithmetic import arithmetic
from felixlike.features.loops import loops
from felixlike.features.reuse import per_reuse, reuse
from felixlike.features.table import NAMES, SLOTS
from felixlike.features.threads import thread_stride, threads
from felixlike.features.traffic import traffic
from felixlike.features.view import Memo, StoreView
from felixlike.hardware import Device, target_device
from felixlike.symbolic import Points, Sketch, Structure
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import WITHIN_BLOCK, Loop, Program

FeatureArray = npt.NDArray[np.float64]


class StructureFormulas:
    """The formulas for one choice of compute locations.

    blocks: names of the stores' blocks, the rows.  roots: one expression for each row and column, row by row."""

    def __init__(self, structure: Structure, memo: Memo, device: Device) -> None:
        self.structure = structure
        rows = [_row(view, device) for view in _views(structure.program, memo)]
        self.blocks = tuple(store.block for store, _ in structure.program.stores())
        self.roots: tuple[Expr, ...] = tuple(row.get(name, const(0)) for row in rows for name in NAMES)

    @cached_property
    def graph(self) -> Graph:
        """The roots prepared for evaluation."""
        return Graph(self.roots)


class Formulas:
    """The formulas of a sketch.  Raises UnsupportedSketch where the sketch is not understood."""

    names = NAMES
    """One for each column; units and meanings are in `features.table.COLUMNS`."""

    def __init__(self, sketch: Sketch, device: Device | None = None) -> None:
        self.sketch = sketch
        self.device = device if device is not None else target_device(sketch.task.target)
        self.stores: tuple[str, ...] = _all_blocks(sketch)
        self._memo = Memo()
        self._structures: dict[tuple[int, ...], StructureFormulas] = {}

    def of_structure(self, locations: tuple[int, ...]) -> StructureFormulas:
        """The formulas for these compute locations."""
        if locations not in self._structures:
            structure = self.sketch.structure(locations)
            self._structures[locations] = StructureFormulas(structure, self._memo, self.device)
        return self._structures[locations]

    def rows(self, formulas: StructureFormulas) -> npt.NDArray[np.int64]:
        """Which row of `stores` each store of a structure is."""
        return np.array([self.stores.index(block) for block in formulas.blocks], dtype=np.int64)

    def evaluate(self, points: Points) -> FeatureArray:
        """float64[count, stores, columns] for int64[count, variables], exact at valid points. Raises InvalidPoint for
        another shape."""
        points = self.sketch.checked(points)
        values = np.zeros((len(points), len(self.stores), len(NAMES)))
        for locations, members in self.sketch.by_structure(points):
            formulas = self.of_structure(locations)
            flat = formulas.graph.evaluate(self.sketch.values(points[members]), len(members))
            values[np.ix_(members, self.rows(formulas))] = flat.reshape(len(members), -1, len(NAMES))
        return values


def formulas(sketch: Sketch, device: Device | None = None) -> Formulas:
    """The feature formulas of a sketch; caches are the device's (default: that of the task's target).

    Raises UnsupportedSketch where the sketch is not understood, InvalidOption for what is no sketch or no device."""
    remedy = "give one of what felixlike.symbolic.sketches(task) returns"
    sketch = option_checks.of_kind(sketch, Sketch, "sketch", where="formulas", remedy=remedy)
    if device is not None:
        option_checks.of_kind(device, Device, "device", where="formulas", remedy="give a felixlike.Device, or None")
    return Formulas(sketch, device)


def _views(program: Program, memo: Memo) -> list[StoreView]:
    views: list[StoreView] = []
    for store, path in program.stores():
        kept = tuple(loop for loop in _run(path) if not (loop.extent.is_const and loop.extent.value == 1))
        views.append(StoreView(program, store, kept, path, tuple(views), memo))
    return views


def _run(path: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops a store is run in: a copy that the threads of a block make together, each of whom has such loops around
    it, is made once for all of them."""
    within = any(loop.share is None and loop.thread == "threadIdx.x" for loop in path)
    if not within or not any(loop.share is not None and loop.share.among("threadIdx.x") for loop in path):
        return path
    return tuple(loop for loop in path if loop.thread not in WITHIN_BLOCK or loop.share is not None)


def _row(view: StoreView, device: Device) -> dict[str, Expr]:
    row = {
        **arithmetic(view),
        **loops(view),
        **traffic(view, device),
        **allocation(view),
        **threads(view),
    }
    for slot, buffer in enumerate(view.buffers[:SLOTS]):
        columns = {**access(view, buffer), **reuse(view, buffer), "thread_stride": thread_stride(view, buffer)}
        columns.update(per_reuse(columns))
        row.update({f"buffer{slot}_{name}": value for name, value in columns.items()})  # all but "uses" are columns
    return row


def _all_blocks(sketch: Sketch) -> tuple[str, ...]:
    """The stores of the sketch with nothing inlined: every structure has these or fewer."""
    return tuple(store.block for store, _ in sketch.program.stores())
