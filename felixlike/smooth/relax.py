"""Compute a sketch's features as a differentiable function: log variables → log(1 + feature), smooth everywhere.

Input: `Formulas`. Output: `Relaxed`, a torch module. Tile factors enter as their logarithm (x = e^x', Felix §3.3),
unroll steps as log(1 + steps). Compute locations enter as the number itself: they select the formulas and have no
gradient.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from felixlike._util import option_checks
from felixlike._util.spent import on
from felixlike._util.torch_modes import default_modes
from felixlike._util.wording import kind_of, shown
from felixlike.errors import InvalidOption, InvalidPoint
from felixlike.features import NAMES, Formulas
from felixlike.smooth import cache
from felixlike.smooth.graph import SmoothGraph
from felixlike.smooth.limits import Excess, sides
from felixlike.smooth.lower import Lowered, Stacked
from felixlike.smooth.saturate import saturate
from felixlike.symbolic import Points
from felixlike.symbolic.expr.expression import Expr

WIDTH = 0.05
"""Default width of smooth gates, maxima and minima, in log units (0.05 is 5 %); chosen by hand."""


_ROWS = "pass one row per point and one column per variable of the sketch"


class Relaxed(nn.Module):
    """Compute smooth features: float[n, variables] → float[n, stores, columns].

    Args:
        formulas: The exact formulas of a sketch.
        width: Width of the smooth operators, in log units. It may be changed between calls.
        dtype: torch.float64 or torch.float32. float32 is twice as fast, with an error of about 1e-5.

    Attributes:
        sketch: The sketch of the formulas.
        saturated: For each choice of compute locations used so far, whether rewriting ended without reaching a limit.
        shifted: Names of the variables whose column is log(1 + value).
    """

    def __init__(self, formulas: Formulas, *, width: float = WIDTH, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.formulas = formulas
        self.width = width
        self.dtype = dtype
        self.saturated: dict[tuple[int, ...], bool] = {}
        """For each choice of compute locations used so far, whether rewriting ended without reaching a limit."""
        self.sketch = sketch = formulas.sketch
        self._columns = [v.name for v in sketch.variables]
        self.shifted = frozenset(v.name for v in sketch.variables if v.shifted)
        """Names of the variables whose column is log(1 + value)."""
        self._lowered = nn.ModuleDict()
        self._excess: dict[tuple[int, ...], Excess] = {}

    @default_modes(gradients=False)
    def forward(self, log_x: Tensor, width: float | None = None, step_kernel: str = "algebraic") -> Tensor:
        """Return log(1 + feature) at relaxed points.

        Args:
            log_x: float[n, variables], as `log_points` returns it.
            width: Width of the smooth operators in this call, in log units. Default: the module's width.
            step_kernel: How steps are smoothed: "algebraic" or "cauchy" (`kernels.STEPS`).

        Returns:
            A tensor [n, stores, columns] of the module's dtype. Rows of inlined stores are 0.

        Raises:
            InvalidPoint: If `log_x` is not a tensor, or has another shape.
        """
        if not isinstance(log_x, Tensor):
            raise InvalidPoint(
                f"expected a torch.Tensor, got {kind_of(log_x)}", where="relax", remedy="pass log_points(points)"
            )
        self._check_width(log_x)
        stores, columns = len(self.formulas.stores), len(NAMES)
        width = self.width if width is None else width
        log_x = log_x.to(self.dtype)
        result = log_x.new_zeros(len(log_x), stores, columns)
        for locations, members in self._by_structure(log_x):
            lowered, rows = self.of_structure(locations)
            flat: Tensor = lowered(log_x.index_select(0, members), width, step_kernel)
            part = flat.reshape(len(members), -1, columns)
            result = result.index_put((members[:, None], rows[None, :]), part)
        return result

    @default_modes()
    def of_structure(self, locations: tuple[int, ...]) -> tuple[Lowered, Tensor]:
        """Return the torch code for these compute locations, and the row in the result of each of its stores."""
        key = "_".join(map(str, locations)) or "only"
        formulas = self.formulas.of_structure(locations)
        if key not in self._lowered:
            with _uncollected(), on("formulas"):
                self._lowered[key] = Lowered(self.graph(locations), self._columns).to(self.dtype)
        lowered = self._lowered[key]
        assert isinstance(lowered, Lowered)
        return lowered, torch.from_numpy(self.formulas.rows(formulas))

    def graph(self, locations: tuple[int, ...]) -> SmoothGraph:
        """Return the smooth program for these compute locations, from the cache or by equality saturation."""
        graph = smooth_graph(self.formulas.of_structure(locations).roots, self.shifted)
        self.saturated[locations] = graph.saturated
        return graph

    @default_modes()
    def excess(self, locations: tuple[int, ...]) -> Excess | None:
        """Return a module that computes how far a relaxed point exceeds the device's limits; None without limits."""
        limits = self.formulas.of_structure(locations).structure.limits
        if limits and locations not in self._excess:
            with _uncollected():
                self._excess[locations] = Excess(smooth_graph(sides(limits), self.shifted), self._columns)
        return self._excess.get(locations)

    def _check_width(self, points: object) -> None:
        """Raise InvalidPoint unless the points have one column per variable."""
        shape = tuple(getattr(points, "shape", ()))
        if len(shape) != 2 or shape[1] != len(self._columns):
            expected, received = f"[count, {len(self._columns)}]", f"shape {shape}" if shape else shown(points)
            raise InvalidPoint(f"expected points of shape {expected}, got {received}", where="relax", remedy=_ROWS)

    def _by_structure(self, log_x: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return the choices of compute locations, each with the rows that made it."""
        columns = list(self.sketch.location_columns)
        if not columns:
            return [((), torch.arange(len(log_x)))]
        chosen = log_x.detach()[:, columns].round().to(torch.int64).tolist()
        rows_by_locations: dict[tuple[int, ...], list[int]] = {}
        for row, locations in enumerate(chosen):
            rows_by_locations.setdefault(tuple(locations), []).append(row)
        return [(locations, torch.tensor(rows)) for locations, rows in rows_by_locations.items()]

    @default_modes()
    def log_points(self, points: Points | npt.NDArray[np.float64]) -> Tensor:
        """Convert points to the module's coordinates.

        Args:
            points: int64 or float64[n, variables].

        Returns:
            float64[n, variables], in log units except for compute locations.

        Raises:
            InvalidPoint: If `points` has another shape or is not numeric.
        """
        try:
            values = np.asarray(points, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidPoint(
                f"expected points as numbers, got {shown(points)}", where="relax", remedy=_ROWS
            ) from error
        self._check_width(values)
        columns = [v.log(values[:, i]) for i, v in enumerate(self.sketch.variables)]
        return torch.from_numpy(np.stack(columns, axis=1) if columns else values)


@default_modes()
def together(structures: Sequence[tuple[Relaxed, tuple[int, ...]]]) -> Stacked:
    """Return torch code for several structures: float[structures, n, variables] → [structures, n, stores · columns].

    The variables of each structure's sketch are followed by padding, and the rows of its stores by zeros.

    Args:
        structures: The smooth features of a sketch, and compute locations, for each structure.
    """
    stacked = Stacked([relaxed.of_structure(locations)[0].plan for relaxed, locations in structures])
    return stacked.to(structures[0][0].dtype)


def smooth_graph(roots: Sequence[Expr], shifted: frozenset[str]) -> SmoothGraph:
    """Return the smooth program of log(1 + root) for every root, from the cache or by equality saturation."""
    with on("saturating"):
        key = cache.cache_key(roots, shifted)
        graph = cache.load(key)
        if graph is None:
            graph = saturate(roots, shifted=shifted)
            cache.store(key, graph)
        return graph


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's cyclic garbage collector inside the `with` block.

    E-graphs and smooth programs are many objects without cycles. Each full collection that they trigger also visits
    everything that TVM and torch hold, and takes longer than the rest of the work.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def relax(formulas: Formulas, *, width: float = WIDTH, dtype: torch.dtype = torch.float64) -> Relaxed:
    """Return the smooth features of a sketch as a torch module.

    Args:
        formulas: The exact formulas, as `felixlike.features.formulas` returns them.
        width: Width of the smooth operators, in log units (natural logarithm); greater than 0.
        dtype: torch.float64 or torch.float32. float32 is twice as fast, with an error of about 1e-5.

    Returns:
        A module that maps log_x [n, variables] to log(1 + feature) [n, stores, columns].

    Raises:
        InvalidOption: If an argument has another type or value.

    Example:
        >>> module = relax(formulas(sketch))
        >>> features = module(module.log_points(sketch.sample(8, seed=0)))
    """
    formulas = option_checks.of_kind(
        formulas, Formulas, "formulas", where="relax", remedy="pass the result of felixlike.features.formulas(sketch)"
    )
    width = option_checks.real(width, "width", positive=True, where="relax")
    if dtype not in (torch.float32, torch.float64):
        raise InvalidOption(f"dtype is {shown(dtype)}", where="relax", remedy="use torch.float64 or torch.float32")
    return Relaxed(formulas, width=width, dtype=dtype)
