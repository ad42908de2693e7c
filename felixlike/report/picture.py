"""Create figures with matplotlib and save them as files. matplotlib is loaded on first use.

Inputs: a figure, the path of an image. Output: the file, or an error that says what to do.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from felixlike._util import option_checks
from felixlike.errors import MissingDependency, OutputNotWritable, first_line
from felixlike.report.curves import Interval

_IMAGES = "give a .png, .svg or .pdf file"
"""Remedy for an invalid name of an image."""


def new_figure(width: float, height: float) -> Any:
    """Create an empty figure of this size in inches. Raise MissingDependency without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("plots require matplotlib", where="plot", remedy="pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_steps(panel: Any, at: list[float], best: list[float], **style: Any) -> None:
    """Plot the best latencies so far (seconds) as steps in µs on a logarithmic axis, from the first finite one on."""
    shown = [(x, seconds * 1e6) for x, seconds in zip(at, best, strict=True) if math.isfinite(seconds)]
    if shown:
        xs, ys = zip(*shown, strict=True)
        panel.step(xs, ys, where="post", **style)
        panel.set_yscale("log")


def draw_band(panel: Any, at: Sequence[float], intervals: Sequence[Interval], **style: Any) -> None:
    """Plot medians as steps and their intervals as a band, from the first finite median on; ends at inf are cut."""
    shown = [(x, one) for x, one in zip(at, intervals, strict=True) if math.isfinite(one.median)]
    if shown:
        xs = [x for x, _ in shown]
        (line,) = panel.step(xs, [one.median for _, one in shown], where="post", **style)
        low = [one.low if math.isfinite(one.low) else one.median for _, one in shown]
        high = [one.high if math.isfinite(one.high) else one.median for _, one in shown]
        panel.fill_between(xs, low, high, step="post", alpha=0.2, color=line.get_color(), linewidth=0)


def for_notebooks(figure: Any) -> Any:
    """Return the figure with a PNG representation, so that notebooks show it without matplotlib's inline backend."""

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110)
        return file.getvalue()

    figure._repr_png_ = png
    return figure


def image_path(path: str | Path) -> Path:
    """Return the path of an image. Raise OutputNotWritable if its name has no suffix."""
    file = option_checks.path(path, "plot", error=OutputNotWritable)
    if not file.suffix:
        raise OutputNotWritable("the name of an image needs a suffix", where=str(file), remedy=_IMAGES)
    return file


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a file. Raise OutputNotWritable if it fails."""
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # matplotlib does not support the suffix
        raise OutputNotWritable(
            f"the plot cannot be written: {first_line(error)}", where=str(path), remedy=_IMAGES
        ) from error
    except OSError as error:
        raise OutputNotWritable(
            f"the plot cannot be written: {error.strerror}", where=str(path), remedy="choose another path"
        ) from error
