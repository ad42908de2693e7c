"""`explain` gives the text, curves and plots of a sketch, and errors for unknown names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import workloads

from felixlike import _tvm
from felixlike.errors import InvalidOption, InvalidPoint, OutputNotWritable, UnsupportedSketch
from felixlike.report.explanation import Explanation, explain
from felixlike.symbolic import Sketch, sketches


@pytest.fixture(scope="module")
def sketch() -> Sketch:
    return sketches(workloads.matmul(relu=True))[1]


@pytest.fixture(scope="module")
def explanation(sketch: Sketch) -> Explanation:
    return explain(sketch)


def test_the_heaviest_block_is_explained(explanation: Explanation) -> None:
    text = str(explanation)
    assert explanation.store == "C"
    for part in ("for i_0 in i.0", "the factors of i must multiply to 128", "C: parallel_extent (count)", "softplus("):
        assert part in text
    for formula in explanation.formulas:
        assert formula.error < 0.05
        assert np.isclose(formula.value, formula.relaxed, rtol=0.2, atol=0.5)


@pytest.mark.parametrize("width", [None, 40, 60, 80])
def test_text_at_every_width(golden: Callable[[str, str], None], width: int | None) -> None:
    two_cores = _tvm.Target({"kind": "llvm", "num-cores": 2})
    explained = explain(sketches(workloads.matmul(16, 16, 16), two_cores)[0], columns="vector_extent")
    text = explained.text(width=width)
    golden("explanation" if width is None else f"explanation_{width}", text)
    assert width in (None, 40) or max(map(len, text.splitlines())) <= width


def test_a_curve_passes_through_the_valid_points(explanation: Explanation) -> None:
    curve = explanation.curve("j.3", "vector_extent")
    assert len(curve.at) == len(curve.exact) == len(curve.smooth) == 200
    assert curve.at[0] == 1
    assert len(curve.points)
    np.testing.assert_array_equal(curve.values, curve.points)
    np.testing.assert_allclose(np.interp(curve.points, curve.at, curve.exact), curve.values, rtol=1e-3)


def test_the_unroll_limit_is_a_variable_too(explanation: Explanation) -> None:
    curve = explanation.curve("unroll", "unroll_steps")
    np.testing.assert_array_equal(curve.points, [0, 16, 64, 512])
    np.testing.assert_allclose(curve.exact, curve.at)
    np.testing.assert_allclose(curve.smooth, curve.at, atol=1e-6)


def test_a_plot_is_an_image(explanation: Explanation, tmp_path: Path) -> None:
    explanation.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputNotWritable, match=r"give a \.png"):
        explanation.plot(tmp_path / "plot.doc")
    with pytest.raises(OutputNotWritable, match=r"No such file or directory\. choose another place"):
        explanation.plot(tmp_path / "nowhere" / "plot.png")
    with pytest.raises(OutputNotWritable, match=r"does not say which kind of image\. give a \.png"):
        explanation.plot(tmp_path / "plot")
    with pytest.raises(OutputNotWritable, match="plot: 5 is not a path"):
        explanation.plot(5)  # type: ignore[arg-type]


def test_the_locations_of_the_point_are_used() -> None:
    sketch = sketches(workloads.conv2d())[1]
    points = sketch.sample(64, seed=2)
    point = points[points[:, sketch.location_columns[0]].argmax()]  # the point with the innermost location
    innermost = explain(sketch, point=point, columns=["allocation_bytes"], store="pad_temp").formulas[0].value
    root = point.copy()
    root[list(sketch.location_columns)] = -1
    assert innermost < explain(sketch, point=root, columns=["allocation_bytes"], store="pad_temp").formulas[0].value


def test_bad_names_are_errors(sketch: Sketch, explanation: Explanation) -> None:
    with pytest.raises(InvalidOption, match=r"there is no feature 'vektor'"):
        explain(sketch, columns=["vektor"])
    with pytest.raises(InvalidOption, match=r"there is no block 'E'.*one of C, D"):
        explain(sketch, store="E")
    with pytest.raises(InvalidOption, match=r"'x\.1' is not a variable to draw along"):
        explanation.curve("x.1", "vector_extent")
    with pytest.raises(InvalidPoint):
        explain(sketch, point=[1, 2])
    with pytest.raises(InvalidOption, match=r"for example vector_extent; all of them are in felixlike.features.NAMES"):
        explain(sketch, columns="vector_extnt")
    with pytest.raises(InvalidOption, match=r"columns to be .*, got an int\. give names"):
        explain(sketch, columns=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"sketch to be .*, got a str\. give one of symbolic\.sketches"):
        explain("x")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedSketch):
        explain(sketches(workloads.large_sum())[0])
