"""Pictures as files; matplotlib, which draws them, is loaded for the first.

In: a figure, the path of an image. Out: the file, or an error that says what to do instead.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from felixlike._util import option_checks
from felixlike.errors import MissingDependency, OutputNotWritable, first_line

_IMAGES = "give a .png, .svg or .pdf file"


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches. Raises MissingDependency."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("drawing needs matplotlib", where="plot", remedy="pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_steps(panel: Any, at: list[float], best: list[float], **style: Any) -> None:
    """The best so far (seconds) as steps in µs on a logarithmic axis, from the first right candidate on."""
    shown = [(x, seconds * 1e6) for x, seconds in zip(at, best, strict=True) if math.isfinite(seconds)]
    if shown:
        xs, ys = zip(*shown, strict=True)
        panel.step(xs, ys, where="post", **style)
        panel.set_yscale("log")


def for_notebooks(figure: Any) -> Any:
    """The figure, which notebooks show also where matplotlib has not been set up for them."""

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110)
        return file.getvalue()

    figure._repr_png_ = png
    return figure


def image_path(path: str | Path) -> Path:
    """The path of an image whose name says of which kind it is. Raises OutputNotWritable."""
    found = option_checks.path(path, "plot", error=OutputNotWritable)
    if not found.suffix:
        raise OutputNotWritable("its name does not say which kind of image", where=str(found), remedy=_IMAGES)
    return found


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure. Raises OutputNotWritable."""
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # a kind that matplotlib does not know
        raise OutputNotWritable(
            f"the plot cannot be written: {first_line(error)}", where=str(path), remedy=_IMAGES
        ) from error
    except OSError as error:
        raise OutputNotWritable(
            f"the plot cannot be written: {error.strerror}", where=str(path), remedy="choose another place"
        ) from error
