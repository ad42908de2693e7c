"""The length of a GPU's source is predicted before it is generated, and points with the longest source are excluded."""

import numpy as np
import pytest
from support.operators import OPERATORS

from felixlike import codegen
from felixlike.symbolic import Sketch, sketches
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.program.source_size import source_characters
from felixlike.symbolic.replay import source_limits as module


def predicted(sketch: Sketch, points: np.ndarray) -> np.ndarray:
    graph = Graph([source_characters(sketch.structure(()).program)])
    return graph.evaluate(sketch.values(points), len(points))[:, 0]


def test_predicted_lengths_are_near_the_generated_lengths() -> None:
    """The sketches have loops unrolled by threads, vectorized copies and pipelines."""
    predictions, lengths = [], []
    for name in ("matmul", "softmax", "conv2d_strided"):
        for sketch in sketches(OPERATORS[name](), "sm_90"):
            points = sketch.sample(6, seed=3)
            predictions += predicted(sketch, points).tolist()
            for point in points.tolist():
                scheduled = sketch.schedule(point).mod
                executable = codegen.compile_primfuncs(scheduled, sketch.task.target)
                lengths.append(len(executable.mod.imports[0].inspect_source()))
    ratios = np.array(predictions) / np.array(lengths)
    assert 0.6 < np.median(ratios) < 1.7
    assert (np.abs(np.log(ratios)) < np.log(4)).mean() > 0.85
    assert np.corrcoef(np.argsort(np.argsort(predictions)), np.argsort(np.argsort(lengths)))[0, 1] > 0.8
    assert max(lengths) > 50 * min(lengths)


def test_points_of_long_source_are_neither_drawn_nor_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = sketches(OPERATORS["conv2d_3x3"](), "sm_90")[1]
    monkeypatch.setattr(module, "LONGEST_SOURCE", 10**9)
    points = sketch.sample(200, seed=1)
    lengths = predicted(sketch, points)
    limit = int(np.median(lengths))
    monkeypatch.setattr(module, "LONGEST_SOURCE", limit)
    assert (sketch.valid(points) == (lengths <= limit)).all()
    drawn = sketch.sample(100, seed=1)
    assert len(drawn) == 100
    assert (predicted(sketch, drawn) <= limit).all()


def test_points_are_drawn_even_if_all_source_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = sketches(OPERATORS["softmax"](small_size=True), "sm_90")[0]
    monkeypatch.setattr(module, "LONGEST_SOURCE", 0)
    assert len(sketch.sample(3, seed=1)) == 3


def test_cpu_sketches_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_SOURCE", 0)
    sketch = sketches(OPERATORS["matmul"](small_size=True))[0]
    points = sketch.sample(5, seed=1)
    assert sketch.source_limits.short(points).all()
    assert sketch.valid(points).all()
