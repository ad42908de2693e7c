"""Declare what sampling and limits need of a sketch, so that their modules do not import the one that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from felixlike.errors import UnsupportedSketch
from felixlike.frontend.task import Task
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.points import Points
from felixlike.symbolic.replay.structure import Structure


class LimitedSketch(Protocol):
    """A sketch as `SourceLimits` sees it; see `Sketch` for its members."""

    task: Task

    @property
    def is_symbolic(self) -> bool: ...

    def unprobed(self, chosen: tuple[int, ...]) -> Structure | UnsupportedSketch: ...

    def by_structure(self, points: Points) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]: ...

    def values(self, points: Points) -> dict[str, npt.NDArray[np.float64]]: ...


class SourceLimit(Protocol):
    """A filter of points by the length of their source; see `SourceLimits`."""

    def short(self, points: Points) -> npt.NDArray[np.bool_]: ...


class SampledSketch(LimitedSketch, Protocol):
    """A sketch as `Sampler` sees it; see `Sketch` for its members."""

    variables: tuple[Variable, ...]
    location_columns: tuple[int, ...]

    @property
    def source_limits(self) -> SourceLimit: ...

    def structure(self, locations: Sequence[int]) -> Structure: ...

    def drawn_by_tvm(self, seed: int) -> tuple[int, ...]: ...

    def accepts(self, point: Sequence[int]) -> bool: ...
