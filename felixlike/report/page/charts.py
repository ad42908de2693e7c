"""Draw curves, points and bars as inline SVG and HTML, in the page's own colours and readable without colour.

Inputs: numbers. Output: markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from felixlike.report.page.markup import Markup, element, joined, lone
from felixlike.report.tables import latency
from felixlike.report.task_history import Pair

_WIDTH, _HEIGHT = 340, 190
"""Size of a chart, in SVG units. Chosen by hand."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 36
"""Margins around the plot area, in SVG units. Chosen by hand."""

_TICKS = 5
"""Upper limit on ticks per axis. Chosen by hand."""
_FIELD_RIGHT, _FIELD_BOTTOM = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
"""Right and bottom edges of the plot area."""


class _Scale:
    """Map values to coordinates. logarithmic: use a logarithmic axis, which needs positive values."""

    def __init__(self, values: Sequence[float], first: float, last: float, *, logarithmic: bool) -> None:
        self._log = logarithmic
        low, high = self._of(min(values)), self._of(max(values))
        margin = 0.06 * (high - low) or (0.1 if logarithmic else 0.5 * abs(high) or 0.5)
        self._low, self._high = low - margin, high + margin
        self._first, self._last = first, last

    def _of(self, value: float) -> float:
        """Return the value, or its logarithm on a logarithmic axis."""
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._low) / (self._high - self._low)
        return round(self._first + share * (self._last - self._first), 1)

    def ticks(self) -> list[float]:
        """Return round values for ticks, at most _TICKS."""
        return _log_ticks(self._low, self._high) if self._log else _linear_ticks(self._low, self._high)


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, … if the range contains at least two of them, else round values of a linear scale."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= math.log10(f * 10.0**d) <= high]
        if 2 <= len(ticks) <= _TICKS:
            return ticks
    if len(ticks) > _TICKS:
        return ticks[:: -(-len(ticks) // _TICKS)]
    return [tick for tick in _linear_ticks(10.0**low, 10.0**high) if tick > 0]


def curve(steps: Sequence[tuple[float, float]], until: float) -> Markup:
    """Draw the best latency over seconds as steps. steps: (seconds, best from then on). until: last second."""
    until = max(steps[-1][0], until if math.isfinite(until) else 0.0)
    x_scale = _Scale([0.0, until or 1.0], _LEFT, _FIELD_RIGHT, logarithmic=False)
    y_scale = _Scale([best for _, best in steps], _FIELD_BOTTOM, _TOP, logarithmic=True)
    path = f"M{x_scale(steps[0][0])} {y_scale(steps[0][1])}"
    path += "".join(f"H{x_scale(at)}V{y_scale(best)}" for at, best in steps[1:]) + f"H{x_scale(until)}"
    dots = [lone("circle", class_="best", cx=x_scale(at), cy=y_scale(best), r=2.5) for at, best in steps]
    words = f"best latency: {latency(steps[0][1])} after {steps[0][0]:.3g} s, {latency(steps[-1][1])} in the end"
    return _chart(words, x_scale, y_scale, "seconds of tuning", lone("path", class_="line", d=path), *dots)


def scatter(pairs: Sequence[Pair]) -> Markup:
    """Draw measured latencies over predicted scores. Good predictions run from the upper left to the lower right."""
    x_scale = _Scale([pair.score for pair in pairs], _LEFT, _FIELD_RIGHT, logarithmic=False)
    y_scale = _Scale([pair.latency for pair in pairs], _FIELD_BOTTOM, _TOP, logarithmic=True)
    dots = [lone("circle", class_="pair", cx=x_scale(pair.score), cy=y_scale(pair.latency), r=3) for pair in pairs]
    words = f"measured latency over predicted score of {len(pairs)} candidates"
    return _chart(words, x_scale, y_scale, "predicted score (right: faster)", *dots)


def in_order(pairs: Sequence[Pair]) -> float:
    """Return the share of pairs of candidates that are predicted in the right order; nan if no pair differs in both."""
    scores = np.array([pair.score for pair in pairs])
    speeds = -np.array([pair.latency for pair in pairs])
    signs = np.sign(scores[:, None] - scores) * np.sign(speeds[:, None] - speeds)
    right, wrong = int((signs > 0).sum()), int((signs < 0).sum())
    return right / (right + wrong) if right + wrong else math.nan


def bars(seconds: Mapping[str, float]) -> Markup:
    """Draw a line per step: its name, a bar, its seconds and its share."""
    seconds = {step: taken for step, taken in seconds.items() if 0 <= taken < math.inf}
    whole = math.fsum(seconds.values()) or 1.0
    most = max(seconds.values(), default=0.0) or 1.0
    rows = [
        element(
            "div",
            element("dt", step),
            element(
                "dd",
                element("span", class_="bar", style=f"width:{100 * taken / most:.1f}%"),
                element("span", f"{taken:.1f} s, {taken / whole:.0%}", class_="value"),
            ),
        )
        for step, taken in seconds.items()
    ]
    return element("dl", *rows, class_="bars")


def _chart(words: str, x_scale: _Scale, y_scale: _Scale, x_label: str, *drawn: Markup) -> Markup:
    """Draw the axes of a chart around its marks."""
    parts: list[Markup] = []
    for tick in y_scale.ticks():
        y = y_scale(tick)
        parts.append(lone("line", class_="grid", x1=_LEFT, x2=_FIELD_RIGHT, y1=y, y2=y))
        parts.append(element("text", latency(tick), x=_LEFT - 6, y=y + 4, text_anchor="end"))
    for tick in x_scale.ticks():
        if tick < 0 and x_label.startswith("seconds"):
            continue
        parts.append(lone("line", class_="grid", x1=x_scale(tick), x2=x_scale(tick), y1=_TOP, y2=_FIELD_BOTTOM))
        parts.append(element("text", f"{tick:.6g}", x=x_scale(tick), y=_FIELD_BOTTOM + 14, text_anchor="middle"))
    middle = (_LEFT + _FIELD_RIGHT) / 2
    parts.append(element("text", x_label, x=middle, y=_HEIGHT - 4, text_anchor="middle", class_="axis"))
    return element(
        "svg",
        element("title", words),
        joined(*parts),
        *drawn,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="chart",
    )
