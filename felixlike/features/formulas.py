"""Build the feature formulas of a sketch: each column of each store as an expression of the schedule variables.

Input: a sketch. Output: `Formulas`, exact at every valid point; `evaluate` computes many points in one vectorised pass.
Each choice of compute locations has its own formulas, built when a point first needs them. An inlined block leaves a
row of zeros, so each row always describes the same block.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from felixlike._util import option_checks
from felixlike._util.spent import on
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
"""Features as float64[count, stores, columns]."""


class StructureFormulas:
    """Hold the formulas for one choice of compute locations.

    Attributes:
        structure: The structure that the formulas describe.
        blocks: Names of the stores' blocks, one for each row.
        roots: One expression for each row and column, row by row.
    """

    def __init__(self, structure: Structure, memo: Memo, device: Device) -> None:
        self.structure = structure
        rows = [_row(view, device) for view in _views(structure.program, memo)]
        self.blocks = tuple(store.block for store, _ in structure.program.stores())
        self.roots: tuple[Expr, ...] = tuple(row.get(name, const(0)) for row in rows for name in NAMES)

    @cached_property
    def graph(self) -> Graph:
        """Return the roots prepared for evaluation."""
        return Graph(self.roots)


class Formulas:
    """Compute the feature formulas of a sketch and evaluate them at points.

    Args:
        sketch: A sketch with a symbolic program.
        device: The device whose cache sizes the formulas use. Default: the device of the task's target.

    Attributes:
        names: The column names; `features.table.COLUMNS` has their units and meanings.
        stores: The block names, one for each row.

    Raises:
        UnsupportedSketch: If the sketch has no symbolic program.
    """

    names = NAMES
    """Name of each column; `features.table.COLUMNS` has their units and meanings."""

    def __init__(self, sketch: Sketch, device: Device | None = None) -> None:
        self.sketch = sketch
        self.device = device if device is not None else target_device(sketch.task.target)
        self.stores: tuple[str, ...] = _all_blocks(sketch)
        self._memo = Memo()
        self._structures: dict[tuple[int, ...], StructureFormulas] = {}

    def of_structure(self, locations: tuple[int, ...]) -> StructureFormulas:
        """Return the formulas for these compute locations."""
        if locations not in self._structures:
            structure = self.sketch.structure(locations)
            with on("formulas"):
                self._structures[locations] = StructureFormulas(structure, self._memo, self.device)
        return self._structures[locations]

    def rows(self, formulas: StructureFormulas) -> npt.NDArray[np.int64]:
        """Return the row in `stores` of each store of a structure: int64[stores of the structure]."""
        return np.array([self.stores.index(block) for block in formulas.blocks], dtype=np.int64)

    def evaluate(self, points: Points) -> FeatureArray:
        """Compute the features at points.

        Args:
            points: int64[count, variables].

        Returns:
            float64[count, stores, columns], exact at valid points. Rows of inlined blocks are zero.

        Raises:
            InvalidPoint: If `points` has another shape or holds values that are not whole numbers.
        """
        points = self.sketch.checked(points)
        values = np.zeros((len(points), len(self.stores), len(NAMES)))
        for locations, members in self.sketch.by_structure(points):
            formulas = self.of_structure(locations)
            flat = formulas.graph.evaluate(self.sketch.values(points[members]), len(members))
            values[np.ix_(members, self.rows(formulas))] = flat.reshape(len(members), -1, len(NAMES))
        return values


def formulas(sketch: Sketch, device: Device | None = None) -> Formulas:
    """Return the feature formulas of a sketch.

    Args:
        sketch: A sketch, as `felixlike.symbolic.sketches` returns it.
        device: The device whose cache sizes the formulas use. Default: the device of the task's target.

    Returns:
        The formulas; `Formulas.evaluate` computes features at points.

    Raises:
        UnsupportedSketch: If the sketch has no symbolic program.
        InvalidOption: If `sketch` is not a sketch or `device` is not a `Device`.

    Example:
        >>> sketch = sketches(task)[0]
        >>> formulas(sketch).evaluate(sketch.sample(8, seed=0)).shape  # (points, stores, columns)
    """
    remedy = "pass a sketch returned by felixlike.symbolic.sketches(task)"
    sketch = option_checks.of_kind(sketch, Sketch, "sketch", where="formulas", remedy=remedy)
    if device is not None:
        option_checks.of_kind(device, Device, "device", where="formulas", remedy="pass a felixlike.Device or None")
    return Formulas(sketch, device)


def _views(program: Program, memo: Memo) -> list[StoreView]:
    """Return a view of each store of a program, in program order."""
    views: list[StoreView] = []
    for store, path in program.stores():
        loops = tuple(
            loop
            for loop in _run(path)
            if not (_is_single(loop) or loop.variable is store.word or loop.variable is store.rows)
        )
        views.append(StoreView(program, store, loops, path, tuple(views), memo))
    return views


def _is_single(loop: Loop) -> bool:
    """Return whether a loop has one iteration at every point."""
    return loop.extent.is_const and loop.extent.value == 1


def _run(path: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops that execute a store.

    A copy that the threads of a block share runs once for all threads, so the thread loops around it are omitted.
    """
    has_thread_loop = any(loop.share is None and loop.thread == "threadIdx.x" for loop in path)
    if not has_thread_loop or not any(loop.share is not None and loop.share.among("threadIdx.x") for loop in path):
        return path
    return tuple(loop for loop in path if loop.thread not in WITHIN_BLOCK or loop.share is not None)


def _row(view: StoreView, device: Device) -> dict[str, Expr]:
    """Return the features of one store by column name."""
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
        row.update({f"buffer{slot}_{name}": value for name, value in columns.items()})  # "uses" is not a column
    return row


def _all_blocks(sketch: Sketch) -> tuple[str, ...]:
    """Return the stores of the sketch with nothing inlined; every structure has these or fewer."""
    return tuple(store.block for store, _ in sketch.program.stores())
