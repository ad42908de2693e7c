"""Printed smooth programs, evaluated as Python, equal the programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import workloads

from felixlike.features import NAMES, formulas
from felixlike.smooth import relax
from felixlike.smooth.kernels import (
    log_diff_exp,
    log_one_plus,
    mix,
    smooth_maximum,
    smooth_minimum,
    smooth_step,
    softplus,
)
from felixlike.smooth.printing import smooth_text
from felixlike.symbolic import sketches

WIDTH = 0.05


def _tensor(x: Any) -> torch.Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


_FUNCTIONS: dict[str, Any] = {
    "mix": lambda g, a, b: mix([_tensor(g)], [_tensor(a), _tensor(b)]),
    "logsumexp": lambda a, b: torch.logaddexp(_tensor(a), _tensor(b)),
    "logdiffexp": lambda a, b: log_diff_exp(_tensor(a), _tensor(b)),
    "softplus": lambda x: softplus(_tensor(x)),
    "log1p": lambda x: log_one_plus(_tensor(x)),
    "step": lambda x: smooth_step(_tensor(x), WIDTH),
    "max": lambda a, b: smooth_maximum(_tensor(a), _tensor(b), WIDTH),
    "min": lambda a, b: smooth_minimum(_tensor(a), _tensor(b), WIDTH),
}


def _computed(text: str, values: dict[str, float]) -> float:
    """Return the value of a printed smooth program by evaluating its lines as Python."""
    *definitions, result = text.splitlines()
    names: dict[str, Any] = dict(_FUNCTIONS)
    for name, value in values.items():
        definitions = [d.replace(f"ln {name}", repr(value)) for d in definitions]
        result = result.replace(f"ln {name}", repr(value))
    for line in definitions:
        name, _, right = line.partition(" = ")
        names[name] = eval(right, names)
    return float(eval(result, names))


@pytest.mark.parametrize("name", ["matmul_odd", "conv2d", "row_sum"])
def test_the_text_evaluates_to_the_program(name: str) -> None:
    sketch = sketches(workloads.ALL[name]())[0]
    features_of_sketch = formulas(sketch)
    relaxed = relax(features_of_sketch, width=WIDTH)
    locations = (-1,) * len(sketch.location_columns)
    points = sketch.sample(1, seed=3)
    points[:, sketch.location_columns] = -1
    log_x = relaxed.log_points(points)
    expected = relaxed(log_x)[0]
    values = {v.name: float(x) for v, x in zip(sketch.variables, log_x[0], strict=True)}
    graph = relaxed.graph(locations)
    for column in ("parallel_extent", "traffic_l1", "buffer1_reuse_distance_bytes", "allocation_bytes"):
        for row in range(len(features_of_sketch.stores)):
            text = smooth_text(graph, row * len(NAMES) + NAMES.index(column))
            computed = _computed(text.replace("ln(1 + unroll)", repr(values.get("unroll"))), values)
            assert math.isclose(computed, float(expected[row, NAMES.index(column)]), rel_tol=1e-4, abs_tol=1e-4), text


def test_shared_parts_are_named_and_shifted_variables_are_marked() -> None:
    sketch = sketches(workloads.matmul())[0]
    relaxed = relax(formulas(sketch))
    graph = relaxed.graph(())
    unroll = smooth_text(graph, NAMES.index("unroll_steps"), shifted=frozenset({"unroll"}))
    assert unroll == "ln(1 + unroll)"
    assert np.array(
        [len(t.split(" = ")) == 2 for t in smooth_text(graph, NAMES.index("traffic_l1")).splitlines()[:-1]]
    ).all()
