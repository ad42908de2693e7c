"""One sketch laid open: its program, what it may choose, a few formulas exact and smooth, and how far apart they are.

In: a sketch that is understood symbolically. Out: `Explanation`: text, or a plot along one variable.
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
_STEPS = 200
_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class Formula:
    """One feature of one store.  exact, smooth: as text; the smooth one is log(1 + feature).  value, relaxed: of both
    at the explanation's point, in the feature's unit.  error: median relative distance at random valid points."""

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
    """A feature along one variable, the outermost factor of its loop making up for it.

    at: values of the variable.  exact, smooth: the feature there.  points, values: the integer points among them."""

    variable: str
    column: str
    unit: str
    at: npt.NDArray[np.float64]
    exact: npt.NDArray[np.float64]
    smooth: npt.NDArray[np.float64]
    points: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class Explanation:
    """What `explain` found.  store: the block whose formulas are shown.  point: the schedule they are evaluated at."""

    def __init__(self, sketch: Sketch, store: str, point: tuple[int, ...], columns: Sequence[str]) -> None:
        self.sketch, self.store, self.point = sketch, store, point
        self._formulas = features.formulas(sketch)
        self._relaxed = smooth.relax(self._formulas)
        self.formulas = tuple(self._formula(name) for name in columns)

    @property
    def _locations(self) -> tuple[int, ...]:
        return tuple(self.point[i] for i in self.sketch.location_columns)

    def _formula(self, name: str) -> Formula:
        found = self._formulas.of_structure(self._locations)
        root = found.blocks.index(self.store) * len(NAMES) + NAMES.index(name)
        graph = self._relaxed.graph(self._locations)
        shifted = frozenset(v.name for v in self.sketch.variables if v.kind is Kind.UNROLL)
        column = COLUMNS[NAMES.index(name)]
        points = self.sketch.sample(_SAMPLES, seed=0)
        kept = points[(points[:, self.sketch.location_columns] == self._locations).all(axis=1)]
        exact, relaxed = self._values(name, np.concatenate([[self.point], kept]).astype(np.float64))
        return Formula(
            column=name,
            unit=column.unit,
            meaning=column.meaning,
            exact=str(found.roots[root]),
            smooth=smooth_text(graph, root, shifted=shifted),
            value=float(exact[0]),
            relaxed=float(relaxed[0]),
            error=float(np.median(np.abs(relaxed - exact) / np.maximum(np.abs(exact), 1.0))),
        )

    def _values(self, name: str, rows: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], ...]:
        """(exact, smooth) float64[n] of a feature at float64[n, variables] of real values."""
        import torch

        found = self._formulas.of_structure(self._locations)
        row, column = found.blocks.index(self.store), NAMES.index(name)
        values = {v.name: rows[:, i] for i, v in enumerate(self.sketch.variables)}
        exact = found.graph.evaluate(values, len(rows))[:, row * len(NAMES) + column]
        with torch.no_grad():
            smoothed = self._relaxed(self._relaxed.log_points(rows))
        return exact, np.expm1(smoothed[:, self._formulas.stores.index(self.store), column].numpy())

    def curve(self, variable: str, column: str) -> Curve:
        """A feature along a tile factor or the unroll limit. Raises InvalidOption for names there are not."""
        _check_column(column)
        index = self._variable(variable)
        chosen = self.sketch.variables[index]
        outer = next(c[0] for _, c in groups(self.sketch.variables) if index in c)
        integers = self._integers(index, outer)
        low, high = float(chosen.choices[0]), float(chosen.choices[-1])
        at = (np.linspace if chosen.kind is Kind.UNROLL else np.geomspace)(low, high, _STEPS)
        rows = np.repeat(np.array([self.point], dtype=np.float64), _STEPS, axis=0)
        rows[:, index] = at
        if chosen.kind is Kind.TILE:
            rows[:, outer] = self.point[index] * self.point[outer] / at
        exact, smoothed = self._values(column, rows)
        values, _ = self._values(column, integers.astype(np.float64))
        unit = COLUMNS[NAMES.index(column)].unit
        return Curve(variable, column, unit, at, exact, smoothed, integers[:, index], values)

    def _integers(self, index: int, outer: int) -> Points:
        """The valid points on the curve."""
        chosen = self.sketch.variables[index]
        rows = []
        for choice in chosen.choices:
            row = list(self.point)
            row[index] = choice
            if chosen.kind is Kind.TILE:
                row[outer] = self.point[index] * self.point[outer] // choice
            rows.append(row)
        points = np.array(rows, dtype=np.int64)
        return points[self.sketch.valid(points)]

    def _variable(self, name: str) -> int:
        moving = [
            c
            for _, members in groups(self.sketch.variables)
            for c in (members[1:] if self.sketch.variables[members[0]].kind is Kind.TILE else members)
            if self.sketch.variables[c].kind is not Kind.LOCATION and not self.sketch.variables[c].fixed
        ]
        for column in moving:
            if self.sketch.variables[column].name == name:
                return column
        raise InvalidOption(
            f"{shown(name)} is not a variable to draw along",
            where=repr(self.sketch),
            remedy=choose_from(name, [self.sketch.variables[c].name for c in moving]),
        )

    def plot(self, path: str | Path, variable: str | None = None) -> None:
        """Exact against smooth along one variable, a panel for each formula, as an image file (needs matplotlib).

        variable: None for the one along which the formulas change most. Raises InvalidOption, MissingDependency,
        OutputNotWritable."""
        path = image_path(path)
        variable = self._most_telling() if variable is None else variable
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

    def _most_telling(self) -> str:
        """The tile factor along which most of the formulas change, and among those the one they change most along."""
        tiles = [v.name for v in self.sketch.variables if v.kind is Kind.TILE and not v.fixed and v.position > 0]
        if not tiles:
            raise InvalidOption(
                "the sketch has no tile factor to draw along",
                where=repr(self.sketch),
                remedy="explain another sketch, or leave the plot out",
            )
        return max(tiles, key=self._changes)

    def _changes(self, variable: str) -> tuple[int, float]:
        exact = [self.curve(variable, f.column).exact for f in self.formulas]
        ranges = [float(np.ptp(np.log1p(np.maximum(x, 0.0)))) for x in exact]
        return sum(r > 0 for r in ranges), sum(ranges)

    def __str__(self) -> str:
        """As wide as the terminal, if standard output is one; in signs that it can show."""
        return showable(self.text(width=stream_width()))

    def text(self, *, width: int | None = None) -> str:
        """All of it as text.  width: lines that are longer go on indented; None: no line is broken."""
        program = self.sketch.structure(self._locations).program
        named = ", ".join(f"{v.name} = {x}" for v, x in zip(self.sketch.variables, self.point, strict=True))
        lines = [*paragraph(repr(self.sketch), width), "", "Program"]
        lines += [*indented(_indented(program_text(program)), width, hanging=4), "", "Variables"]
        for v in self.sketch.variables:
            lines += indented(f"  {v.name}: {_choices(v.choices, v.kind)}", width, hanging=4)
        lines += ["", "Constraints"]
        for reason in _reasons(self.sketch):
            lines += indented(f"  {reason}", width, hanging=4)
        lines += ["", *paragraph(f"Point: {named}", width)]
        for formula in self.formulas:
            lines += ["", *self._about(formula, width)]
        return "\n".join(lines)

    def _about(self, formula: Formula, width: int | None) -> list[str]:
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
    """Lay open one sketch.

    store: a block's name (default: the one with most work). columns: names of features. point: where formulas are
    evaluated (default: a random valid one). Raises UnsupportedSketch, InvalidOption, InvalidPoint."""
    option_checks.of_kind(sketch, Sketch, "sketch", where="explain", remedy="give one of symbolic.sketches(task)")
    option_checks.of_kind(columns, Iterable, "columns", where="explain", remedy=f"give names, as {DEFAULT_COLUMNS}")
    columns = (columns,) if isinstance(columns, str) else tuple(columns)
    for column in columns:
        _check_column(column)
    blocks = [s.block for s, _ in sketch.program.stores()]
    if store is not None and store not in blocks:
        raise InvalidOption(f"there is no block {shown(store)}", where=repr(sketch), remedy=choose_from(store, blocks))
    chosen = tuple(sketch.sample(1, seed=0)[0].tolist() if point is None else sketch.checked([point])[0].tolist())
    return Explanation(sketch, store if store is not None else _heaviest(sketch), chosen, columns)


def _heaviest(sketch: Sketch) -> str:
    """The block whose store runs most often."""
    found = features.formulas(sketch)
    point = sketch.sample(1, seed=0)
    point[:, sketch.location_columns] = -1
    iterations = found.evaluate(point)[0, :, NAMES.index("iterations")]
    return found.stores[int(iterations.argmax())]


def _check_column(name: Any) -> None:
    if name in NAMES:
        return
    near = [n for n in NAMES if isinstance(name, str) and name in n][:6]
    likely = nearest(name, NAMES)
    known = near or ([likely] if likely else DEFAULT_COLUMNS)
    raise InvalidOption(
        f"there is no feature {shown(name)}",
        where="columns",
        remedy=f"for example {', '.join(known)}; all of them are in felixlike.features.NAMES",
    )


def _choices(choices: Sequence[int], kind: Kind) -> str:
    if kind is Kind.LOCATION:
        return "where a block is computed: -2 inlined, -1 at the root, else under that loop of its consumer"
    shown = ", ".join(map(str, choices[:12]))
    return f"{kind} {shown}{', …' if len(choices) > 12 else ''}"


def _reasons(sketch: Sketch) -> list[str]:
    return list(dict.fromkeys(c.reason for c in sketch.constraints)) or ["none"]


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
