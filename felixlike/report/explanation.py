"""Explain one sketch: its program, its variables, and a few formulas in exact and smooth form with their distance.

Input: a symbolic sketch. Output: `Explanation`, which is text, or a plot along one variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import features, smooth
from felixlike._encoding import showable
from felixlike._util import option_checks
from felixlike._util.wording import choose_from, nearest, shown
from felixlike.errors import InvalidOption
from felixlike.features.table import COLUMNS, NAMES
from felixlike.report.layout import entry, indented, paragraph, stream_width
from felixlike.report.picture import image_path, new_figure, save_figure
from felixlike.smooth.printing import smooth_text
from felixlike.symbolic import Kind, Points, Sketch
from felixlike.symbolic.program.program import program_text
from felixlike.symbolic.program.variables import groups

DEFAULT_COLUMNS = ("vector_extent", "parallel_extent", "buffer1_reuse_distance_bytes", "traffic_l1")
"""Features that `explain` shows by default. Chosen by hand."""
_STEPS = 200
"""Number of points of a curve. Chosen by hand."""
_SAMPLES = 256
"""Number of random points for the error of a smooth formula. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Formula:
    """One feature of one buffer store, as an exact and as a smooth formula.

    Attributes:
        column: Name of the feature.
        unit: Unit of the feature.
        meaning: Description of the feature.
        exact: Text of the exact formula.
        smooth: Text of the smooth formula of log(1 + feature).
        value: Exact feature at the explanation's point, in `unit`.
        relaxed: Smooth feature at that point, in `unit`.
        error: Median relative distance of the two at random valid points.
    """

    column: str
    unit: str
    meaning: str
    exact: str
    smooth: str
    value: float
    relaxed: float
    error: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A feature along one variable. For a tile factor, the outermost factor of its loop compensates.

    Attributes:
        variable: Name of the variable.
        column: Name of the feature.
        unit: Unit of the feature.
        at: float64[n], values of the variable.
        exact: float64[n], exact feature at `at`.
        smooth: float64[n], smooth feature at `at`.
        points: int64[m], values of the variable at the valid schedules on the curve.
        values: float64[m], exact feature at `points`.
    """

    variable: str
    column: str
    unit: str
    at: npt.NDArray[np.float64]
    exact: npt.NDArray[np.float64]
    smooth: npt.NDArray[np.float64]
    points: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class Explanation:
    """The result of `explain`.

    Attributes:
        sketch: The explained sketch.
        store: Name of the block whose formulas are shown.
        point: Schedule at which the formulas are evaluated.
        formulas: The explained formulas, one per feature.
    """

    def __init__(self, sketch: Sketch, store: str, point: tuple[int, ...], columns: Sequence[str]) -> None:
        self.sketch, self.store, self.point = sketch, store, point
        self._formulas = features.formulas(sketch)
        self._relaxed = smooth.relax(self._formulas)
        self.formulas = tuple(self._formula(name) for name in columns)

    @property
    def _locations(self) -> tuple[int, ...]:
        """Return the locations of the explanation's point."""
        return tuple(self.point[i] for i in self.sketch.location_columns)

    def _formula(self, name: str) -> Formula:
        """Return a feature's formulas, their values at the point, and their distance."""
        formulas = self._formulas.of_structure(self._locations)
        root = formulas.blocks.index(self.store) * len(NAMES) + NAMES.index(name)
        graph = self._relaxed.graph(self._locations)
        shifted = frozenset(v.name for v in self.sketch.variables if v.kind is Kind.UNROLL)
        column = COLUMNS[NAMES.index(name)]
        points = self.sketch.sample(_SAMPLES, seed=0)
        samples = points[(points[:, self.sketch.location_columns] == self._locations).all(axis=1)]
        exact, relaxed = self._values(name, np.concatenate([[self.point], samples]).astype(np.float64))
        return Formula(
            column=name,
            unit=column.unit,
            meaning=column.meaning,
            exact=str(formulas.roots[root]),
            smooth=smooth_text(graph, root, shifted=shifted),
            value=float(exact[0]),
            relaxed=float(relaxed[0]),
            error=float(np.median(np.abs(relaxed - exact) / np.maximum(np.abs(exact), 1.0))),
        )

    def _values(self, name: str, rows: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], ...]:
        """Evaluate a feature at float64[n, variables]. Return its exact and smooth values, float64[n] each."""
        import torch

        formulas = self._formulas.of_structure(self._locations)
        row, column = formulas.blocks.index(self.store), NAMES.index(name)
        values = {v.name: rows[:, i] for i, v in enumerate(self.sketch.variables)}
        exact = formulas.graph.evaluate(values, len(rows))[:, row * len(NAMES) + column]
        with torch.no_grad():
            smoothed = self._relaxed(self._relaxed.log_points(rows))
        return exact, np.expm1(smoothed[:, self._formulas.stores.index(self.store), column].numpy())

    def curve(self, variable: str, column: str) -> Curve:
        """Evaluate a feature along a tile factor or the unroll limit.

        Args:
            variable: Name of a variable that is neither fixed, nor a location, nor the outermost factor of a loop.
            column: Name of a feature.

        Returns:
            The exact and smooth feature at 200 values, and the exact one at the valid schedules among them.

        Raises:
            InvalidOption: The variable or the feature does not exist.
        """
        _check_column(column)
        index = self._variable(variable)
        moving = self.sketch.variables[index]
        outer = next(c[0] for _, c in groups(self.sketch.variables) if index in c)
        integers = self._integers(index, outer)
        low, high = float(moving.choices[0]), float(moving.choices[-1])
        at = (np.linspace if moving.kind is Kind.UNROLL else np.geomspace)(low, high, _STEPS)
        rows = np.repeat(np.array([self.point], dtype=np.float64), _STEPS, axis=0)
        rows[:, index] = at
        if moving.kind is Kind.TILE:
            rows[:, outer] = self.point[index] * self.point[outer] / at
        exact, smoothed = self._values(column, rows)
        values, _ = self._values(column, integers.astype(np.float64))
        unit = COLUMNS[NAMES.index(column)].unit
        return Curve(variable, column, unit, at, exact, smoothed, integers[:, index], values)

    def _integers(self, index: int, outer: int) -> Points:
        """Return the valid points on the curve."""
        moving = self.sketch.variables[index]
        rows = []
        for choice in moving.choices:
            row = list(self.point)
            row[index] = choice
            if moving.kind is Kind.TILE:
                row[outer] = self.point[index] * self.point[outer] // choice
            rows.append(row)
        points = np.array(rows, dtype=np.int64)
        return points[self.sketch.valid(points)]

    def _variable(self, name: str) -> int:
        """Return the column of a variable that a curve can follow. Raise InvalidOption for other names."""
        candidates = [
            c
            for _, members in groups(self.sketch.variables)
            for c in (members[1:] if self.sketch.variables[members[0]].kind is Kind.TILE else members)
            if self.sketch.variables[c].kind is not Kind.LOCATION and not self.sketch.variables[c].fixed
        ]
        for column in candidates:
            if self.sketch.variables[column].name == name:
                return column
        raise InvalidOption(
            f"cannot plot along {shown(name)}",
            where=repr(self.sketch),
            remedy=choose_from(name, [self.sketch.variables[c].name for c in candidates]),
        )

    def plot(self, path: str | Path, variable: str | None = None) -> None:
        """Plot exact against smooth formulas along one variable, one panel per formula.

        Args:
            path: Image file to write (.png, .svg or .pdf).
            variable: Name of the variable; None for the tile factor along which the formulas change most.

        Raises:
            InvalidOption: The variable does not exist, or the sketch has no tile factor.
            MissingDependency: matplotlib is not installed.
            OutputNotWritable: The file cannot be written.
        """
        path = image_path(path)
        variable = self._most_sensitive_factor() if variable is None else variable
        figure = new_figure(4.2 * len(self.formulas), 3.4)
        panels = figure.subplots(1, len(self.formulas), squeeze=False)[0]
        for panel, formula in zip(panels, self.formulas, strict=True):
            curve = self.curve(variable, formula.column)
            panel.plot(curve.at, curve.exact, color="0.7", linewidth=3, label="exact formula")
            panel.plot(curve.at, curve.smooth, color="tab:blue", label="smooth")
            panel.plot(curve.points, curve.values, "o", color="tab:red", label="valid schedules")
            panel.set(title=formula.column, xlabel=variable, ylabel=formula.unit)
            if curve.at[0] >= 1 and curve.at[-1] > 4:
                panel.set_xscale("log", base=2)
        panels[0].legend()
        figure.suptitle(f"{self.store}, sketch {self.sketch.index} of {self.sketch.task.name}")
        save_figure(figure, path)

    def _most_sensitive_factor(self) -> str:
        """Return the tile factor along which most formulas change. Ties go to the one with the largest change."""
        tiles = [v.name for v in self.sketch.variables if v.kind is Kind.TILE and not v.fixed and v.position > 0]
        if not tiles:
            raise InvalidOption(
                "the sketch has no tile factor to plot along",
                where=repr(self.sketch),
                remedy="explain another sketch, or omit the plot",
            )
        return max(tiles, key=self._changes)

    def _changes(self, variable: str) -> tuple[int, float]:
        """Return how many formulas change along a variable, and the sum of their ranges on a log scale."""
        exact = [self.curve(variable, f.column).exact for f in self.formulas]
        ranges = [float(np.ptp(np.log1p(np.maximum(x, 0.0)))) for x in exact]
        return sum(r > 0 for r in ranges), sum(ranges)

    def __str__(self) -> str:
        """Return the text as wide as the terminal and in characters that standard output can encode."""
        return showable(self.text(width=stream_width()))

    def text(self, *, width: int | None = None) -> str:
        """Return the whole explanation as text.

        Args:
            width: Columns of text. Longer lines continue indented. None does not wrap.
        """
        program = self.sketch.structure(self._locations).program
        assignments = ", ".join(f"{v.name} = {x}" for v, x in zip(self.sketch.variables, self.point, strict=True))
        lines = [*paragraph(repr(self.sketch), width), "", "Program"]
        lines += [*indented(_indented(program_text(program)), width, hanging=4), "", "Variables"]
        for v in self.sketch.variables:
            lines += indented(f"  {v.name}: {_choices(v.choices, v.kind)}", width, hanging=4)
        lines += ["", "Constraints"]
        for reason in _reasons(self.sketch):
            lines += indented(f"  {reason}", width, hanging=4)
        lines += ["", *paragraph(f"Point: {assignments}", width)]
        for formula in self.formulas:
            lines += ["", *self._formula_lines(formula, width)]
        return "\n".join(lines)

    def _formula_lines(self, formula: Formula, width: int | None) -> list[str]:
        """Return the lines of one formula."""
        values = (
            f"{formula.value:.6g} exact, {formula.relaxed:.6g} smooth; "
            f"{formula.error:.2%} apart at random points (median)"
        )
        return [
            *paragraph(f"{self.store}: {formula.column} ({formula.unit}): {formula.meaning}", width),
            *entry("  exact", formula.exact, width, column=20),
            *entry("  smooth, log(1+·)", formula.smooth, width, column=20),
            *entry("  at the point", values, width, column=20),
        ]


def explain(
    sketch: Sketch,
    *,
    store: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    point: Sequence[int] | None = None,
) -> Explanation:
    """Explain one sketch.

    Args:
        sketch: One of `symbolic.sketches(task)`.
        store: Name of a block; None for the block whose store runs most often.
        columns: Names of features, as in `felixlike.features.NAMES`.
        point: Schedule at which formulas are evaluated, an integer per variable; None for a random valid one.

    Raises:
        UnsupportedSketch: The sketch is not symbolic.
        InvalidOption: The block or a feature does not exist.
        InvalidPoint: The point is not valid for the sketch.

    Example:
        >>> print(explain(symbolic.sketches(task)[0], columns=["vector_extent"]))
    """
    option_checks.of_kind(sketch, Sketch, "sketch", where="explain", remedy="give one of symbolic.sketches(task)")
    option_checks.of_kind(
        columns, Iterable, "columns", where="explain", remedy=f"give names, for example {DEFAULT_COLUMNS}"
    )
    columns = (columns,) if isinstance(columns, str) else tuple(columns)
    for column in columns:
        _check_column(column)
    blocks = [s.block for s, _ in sketch.program.stores()]
    if store is not None and store not in blocks:
        raise InvalidOption(f"unknown block {shown(store)}", where=repr(sketch), remedy=choose_from(store, blocks))
    chosen = tuple(sketch.sample(1, seed=0)[0].tolist() if point is None else sketch.checked([point])[0].tolist())
    return Explanation(sketch, store if store is not None else _heaviest(sketch), chosen, columns)


def _heaviest(sketch: Sketch) -> str:
    """Return the block whose store runs most often."""
    formulas = features.formulas(sketch)
    point = sketch.sample(1, seed=0)
    point[:, sketch.location_columns] = -1
    iterations = formulas.evaluate(point)[0, :, NAMES.index("iterations")]
    return formulas.stores[int(iterations.argmax())]


def _check_column(name: Any) -> None:
    """Raise InvalidOption unless a feature of this name exists."""
    if name in NAMES:
        return
    near = [n for n in NAMES if isinstance(name, str) and name in n][:6]
    likely = nearest(name, NAMES)
    known = near or ([likely] if likely else DEFAULT_COLUMNS)
    raise InvalidOption(
        f"unknown feature {shown(name)}",
        where="columns",
        remedy=f"for example {', '.join(known)}; felixlike.features.NAMES lists all",
    )


def _choices(choices: Sequence[int], kind: Kind) -> str:
    """Return the choices of a variable as text, at most twelve."""
    if kind is Kind.LOCATION:
        return "where a block is computed: -2 inlined, -1 at the root, else under that loop of its consumer"
    shown = ", ".join(map(str, choices[:12]))
    return f"{kind} {shown}{', …' if len(choices) > 12 else ''}"


def _reasons(sketch: Sketch) -> list[str]:
    """Return the distinct reasons of the sketch's constraints, or "none"."""
    return list(dict.fromkeys(c.reason for c in sketch.constraints)) or ["none"]


def _indented(text: str, by: int = 2) -> str:
    """Indent every line of a text."""
    return "\n".join(" " * by + line for line in text.splitlines())
